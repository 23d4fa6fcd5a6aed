"""Part 3: which server has the beginning of a prompt? Three ways to choose one, on two kinds of load.

`agents`: sessions whose prompts grow by each answer, more of them than one server can keep. `fan-out`: one session that
asks many questions at once. Cached tokens are the servers' own count, from their step logs.
"""

import json
import random
import sys
from concurrent.futures import ThreadPoolExecutor

from fleet import Fleet, steps_of

from labkit.client import context
from labkit.client.router import POLICIES, Router, score_each
from labkit.disk import atomic_write

SESSIONS, TURNS = 10, 4
SHARED, FIRST, TOOL, ANSWER = (
    16,
    160,
    16,
    8,
)  # tokens: the common beginning; a session's own; of each turn; of each answer
FANNED, FAN_SHARED, FAN_OWN, FAN_ANSWER = 12, 96, 24, 24


def main() -> None:
    lab = context.load_context(sys.argv[1])
    found, records, log = {load: {} for load in LOADS}, [], []
    with Fleet(lab) as fleet:
        for load, run in LOADS.items():
            for policy, score in POLICIES.items():
                rng = random.Random(f"{load} {policy}")  # texts of its own: nothing of an earlier policy is found
                router = Router(fleet.names, score_each(score), lab.settings["kept_blocks"])
                routed = Routed(fleet, router, policy)
                run(routed, fleet, rng)
                found[load][policy] = counted(lab, routed)
                records += routed.records
                log += [{"load": load, "policy": policy, **line} for line in routed.log]
                shares = " and ".join(str(found[load][policy]["served"][name]) for name in fleet.names)
                cached = f"{found[load][policy]['cached']:,} of {found[load][policy]['prompt']:,} prompt tokens cached"
                print(f"{lab.phase}: {load}, {policy}: {shares} requests; {cached}", flush=True)
    tell(log, found)
    atomic_write(lab.out / "router.jsonl", "".join(json.dumps(line) + "\n" for line in log))
    lab.finish(found, records)


class Routed:
    """Requests by way of a router, whose decisions are kept; each goes to its server too, for the step log."""

    def __init__(self, fleet, router, policy):
        self.fleet, self.router, self.policy = fleet, router, policy
        self.records, self.log = [], []

    def ask(self, asks, tokens):
        """Send (session, prompt) pairs at the same time, decided upon one after the other; the answers' texts."""
        decided = [(session, prompt, self.router.choose(self.fleet.ids(prompt), session)) for session, prompt in asks]

        def send(ask):
            session, prompt, decision = ask
            why = json.dumps({"policy": self.policy, "session": session, **decision.to_json()})
            return self.fleet.whole(decision.replica, prompt, tokens, session, why)

        with ThreadPoolExecutor(len(decided)) as pool:
            records = list(pool.map(send, decided))
        ended = sorted(zip(records, decided, strict=True), key=lambda pair: pair[0].end)  # as the servers keep them
        for record, (_, prompt, decision) in ended:
            self.router.answered(decision, self.fleet.ids(prompt + record.text)[:-1])  # the last is not computed yet
        self.records += records
        for record, (session, _, decision) in zip(records, decided, strict=True):
            self.log.append({"request": record.id, "session": session, **decision.to_json()})
        return [record.text for record in records]


def agents(routed, fleet, rng):
    """Each session's next turn begins with all that was said in it; they come in another order each time."""
    shared = fleet.text(rng, SHARED)
    said = {f"session {number}": shared + fleet.text(rng, FIRST) for number in range(SESSIONS)}
    for _ in range(TURNS):
        order = rng.sample(sorted(said), SESSIONS)
        answers = routed.ask([(session, said[session]) for session in order], ANSWER)
        for session, answer in zip(order, answers, strict=True):
            said[session] += answer + fleet.text(rng, TOOL)


def fan_out(routed, fleet, rng):
    """An agent that asks many questions about one text at the same time, after a first one."""
    shared = fleet.text(rng, FAN_SHARED)
    routed.ask([("one", shared)], FAN_ANSWER)
    routed.ask([("one", shared + fleet.text(rng, FAN_OWN)) for _ in range(FANNED)], FAN_ANSWER)


LOADS = {"agents": agents, "fan-out": fan_out}


def counted(lab, routed):
    """What the servers found cached, and how the requests were spread."""
    mine = {record.id for record in routed.records}
    cached, served = {}, dict.fromkeys(routed.fleet.names, 0)
    for step in steps_of(lab, routed.records):
        for id, letter, found in zip(step.ids, step.phase, step.cached, strict=True):
            if id in mine and letter == "p":
                cached[id] = found
                served[str(step.more["replica"])] += 1
    return {
        "cached": sum(cached.values()),
        "prompt": sum(len(routed.fleet.ids(record.prompt)) for record in routed.records),
        "expected": sum(line["candidates"][line["replica"]]["cached"] for line in routed.log),
        "served": served,
        "found": cached,
    }


def tell(log, found):
    """Beside each decision, what the chosen server really found."""
    for line in log:
        line["found"] = found[line["load"]][line["policy"]]["found"].get(line["request"])
    for load in found.values():
        for policy in load.values():
            del policy["found"]


if __name__ == "__main__":
    main()
