"""Part 4: a replica is killed under load and comes back; then all are restarted in turn. What does a client notice?"""

import sys
import threading
import time

from labkit.client import context
from labkit.client.ask import TextStream, UnaryClient, text_tensor
from labkit.errors import LabError
from labkit.evidence import steplog

USERS = 3  # of each kind
BREATH_S = 0.5  # before, between and after the events
UNARY, STREAMED = "waits", "streams"


def main() -> None:
    lab = context.load_context(sys.argv[1])
    load = Load(lab.endpoints["grpc"])
    events = []
    try:
        for act, arguments in (("kill", {"replica": 2}), ("restart", {}), ("roll", {})):
            time.sleep(BREATH_S)
            done = lab.act(act, **arguments).done()
            events.append({"act": act, "began": done.began, "ended": done.ended})
        time.sleep(BREATH_S)
    finally:
        load.stop()
    back = events[1]["ended"]  # the replica that was killed serves again
    failed, cut = ([record for record in each if record.error] for each in (load.unary, load.streams))
    found = {
        "unary": len(load.unary),
        "unary_failed": len(failed),
        "unary_failed_later": sum(record.end > back for record in failed),
        "streams": len(load.streams),
        "cut_by_kill": sum(record.end <= back for record in cut),
        "cut_later": sum(record.end > back for record in cut),
        "cut": [{"request": one.label, "after_tokens": len(one.responses), "error": one.error} for one in cut],
        "events": events,
    }
    print(
        f"{lab.phase}: {found['unary']} unary requests, {found['unary_failed']} failed; {found['streams']} streams, "
        f"{found['cut_by_kill']} cut by the kill, {found['cut_later']} later"
    )
    for one in found["cut"]:
        print(f"  {one['request']} was cut after {one['after_tokens']} tokens: {one['error'].splitlines()[0][:80]}")
    good = [record for record in (*load.unary, *load.streams) if record.ok]
    lab.finish({**found, "steps": steps(lab, min(record.start for record in good))}, good)


class Load:
    """Users who send requests, each over its own connection, until they are stopped."""

    def __init__(self, endpoint):
        self.endpoint = endpoint
        self.unary, self.streams = [], []
        self.over = threading.Event()
        self.threads = [threading.Thread(target=work) for work in (self.ask, self.listen) for _ in range(USERS)]
        for thread in self.threads:
            thread.start()

    def stop(self):
        self.over.set()
        for thread in self.threads:
            thread.join()

    def ask(self):
        with UnaryClient(self.endpoint) as client:
            while not self.over.is_set():
                record = client.send_inputs(UNARY, "hello", [text_tensor("text_input", "hello")])
                finish(client, record)
                self.unary.append(record)

    def listen(self):
        while not self.over.is_set():  # a stream each, so that a cut affects one user only
            with TextStream(self.endpoint) as stream:
                record = stream.send(STREAMED, "one word after the other until all are said")
                finish(stream, record)
                self.streams.append(record)


def finish(client, record):
    """Wait for the end, which may be an error."""
    try:
        client.wait(record, timeout=120)
    except LabError as error:
        record.error = record.error or str(error)
        record.end = record.end or time.monotonic()


def steps(lab, since):
    """The executions of each replica's models: [began, ended, model, batch]."""
    folders = {folder.name.removeprefix("replica-"): folder for folder in sorted(lab.run_dir.glob("replica-*"))}
    return {
        number: [
            [step.began, step.over, step.model, step.batch]
            for model in (UNARY, STREAMED)
            for step in steplog.read_step_log(folder, model, since)
        ]
        for number, folder in folders.items()
    }


if __name__ == "__main__":
    main()
