"""Part 2: a sequence must stay on one replica. How much breaks if it does not, and when a replica dies?"""

import random
import sys
import time

from labkit.client import context
from labkit.client.sequences import SequenceClient
from labkit.errors import LabError
from labkit.evidence.records import RequestRecord

MODEL = "remembers"
SEQUENCES, LENGTH = 50, 4
WITNESSES = 24  # sequences that are under way when a replica dies


def main() -> None:
    lab = context.load_context(sys.argv[1])
    talk = Talk(lab.endpoints["http"])
    found = counted(talk)
    if lab.phase.endswith("hash"):  # without affinity there is nothing left to be lost
        found["kill"] = killed(lab, talk)
    print(
        f"{lab.phase}: of {found['requests']} requests {found['failed']} failed, {found['wrong']} were answered wrongly"
    )
    lab.finish(found, talk.records)


class Talk:
    """A client that sends one request after the other, and knows the right answers."""

    def __init__(self, endpoint):
        self.client = SequenceClient(endpoint, MODEL)
        self.records, self.errors = [], {}

    def ask(self, id, number, end=False):
        """Request `number` (from 1) of a sequence: "right", "wrong" or "failed"."""
        record = RequestRecord(f"{id}-{number}", MODEL, f"request {number}", start=time.monotonic())
        try:
            answer = self.client.ask("hello", id, start=number == 1, end=end)
        except LabError as error:
            self.errors[error.why] = self.errors.get(error.why, 0) + 1
            return "failed"
        record.end = time.monotonic()
        record.responses.append((record.end, answer))
        self.records.append(record)
        return "right" if answer == str(number) else "wrong"


def counted(talk):
    """Send many sequences at once, their requests in random order."""
    rng = random.Random(7)
    asked = dict.fromkeys(range(1001, 1001 + SEQUENCES), 0)
    found, broken = {"right": 0, "wrong": 0, "failed": 0}, set()
    while unfinished := [id for id, count in asked.items() if count < LENGTH]:
        id = rng.choice(unfinished)
        asked[id] += 1
        outcome = talk.ask(id, asked[id], end=asked[id] == LENGTH)
        found[outcome] += 1
        broken |= {id} if outcome != "right" else set()
    return {
        **found,
        "requests": SEQUENCES * LENGTH,
        "sequences": SEQUENCES,
        "broken": found["wrong"] + found["failed"],
        "broken_sequences": len(broken),
        "reasons": dict(talk.errors),
    }


def killed(lab, talk):
    """Kill a replica while sequences are under way: each goes on, or is lost and begins again. Then bring it back."""
    ids = range(2001, 2001 + WITNESSES)
    for id in ids:
        talk.ask(id, 1)
    lab.act("kill", replica=1).done()
    after = {id: talk.ask(id, 2) for id in ids}
    lost = [id for id, outcome in after.items() if outcome != "right"]
    restarted = [talk.ask(id, 1) for id in lost]
    lab.act("restart").done()
    # Consistent hashing sends the restarted sequences back to the first replica: they are lost again.
    home = {id: talk.ask(id, 2) for id in lost}
    others = [talk.ask(id, 3, end=True) for id in ids if id not in lost]
    found = {
        "sequences": WITNESSES,
        "lost": len(lost),
        "began_anew": restarted.count("right"),
        "lost_again": sum(outcome != "right" for outcome in home.values()),
        "others_broken": sum(outcome != "right" for outcome in others),
    }
    print(
        f"{lab.phase}: replica 1 died with {found['lost']} of {WITNESSES} sequences; {found['began_anew']} of them "
        f"began again on the other, and {found['lost_again']} were lost again when it came back"
    )
    return found


if __name__ == "__main__":
    main()
