"""Lab 07: load balancing, sequence affinity, the gain of a second replica, failure and restart, and when to scale."""

from __future__ import annotations

from collections.abc import Iterator

from labctl.lab import Bench, Guess, Lab, LabRun, LabSettings, Place, Probe, Served, Stack, Verdict, setting


class Settings(LabSettings):
    seats: int = setting(4, "the most requests in one step of waits and of streams", ge=1, le=64)
    step_ms: float = setting(
        100, "the time of a step of waits and of streams, whatever its number of requests", ge=1, le=10000
    )
    rounds: int = setting(30000, "the work of computes for a request on each core", ge=1000, le=10_000_000)


def serve(s: Settings, at: Place) -> Served:
    hello = {"text_input": "hello"}
    whole = {"sequence_id": 1, "sequence_start": True, "sequence_end": True}
    text = {"name": "text_input", "shape": [1, 1], "datatype": "BYTES", "data": ["hello"]}
    return Served(
        repository=["./models"],
        parameters={"seats": s.seats, "step_ms": s.step_ms, "rounds": s.rounds, "run_dir": at.run_dir},
        probes={
            "waits": Probe(hello, "generate"),
            "computes": Probe(hello, "generate"),
            "remembers": Probe({"parameters": whole, "inputs": [text]}),
            "streams": Probe({**hello, "max_tokens": 1}, "generate_stream"),
        },
        # A replica is drained before it is stopped. Triton 2.51 keeps a model now and then whose streams have all
        # ended.
        exit_timeout=3,
    )


SCALED = Stack(
    name="scaled",
    title="four small models, each with its own answer to a second server",
    models=["waits", "computes", "remembers", "streams"],
    serve=serve,
    bench=Bench("streams"),
)
PHASES = (
    ("spread-l4", "spread.py", "l4"),
    ("spread-client", "spread.py", "client"),
    ("spread-l7", "spread.py", "l7"),
    ("sequences-l7", "sequences.py", "l7"),
    ("speed-up", "speed_up.py", "l7"),
    ("nothing-lost", "nothing_lost.py", "l7"),
    ("when-to-scale", "when_to_scale.py", "l7"),
    ("sequences-hash", "sequences.py", "hash"),
)


def run(lab: LabRun, s: Settings) -> Iterator[Verdict]:
    lab.require("cpu")  # on a GPU each replica would need one
    for phase, client, balance in PHASES:
        with lab.serving(SCALED, replicas=2, balance=balance) as server:
            server.client(client, phase)
    lab.report("report.py")
    yield Verdict(
        name="a-connection-stays",
        value="spread.l4.one",
        at_least=0.99,
        text="l4: {value:.0%} of one client's {m[spread.requests]:.0f} requests went to one replica, and "
        "{m[spread.l4.eight]:.0%} of eight clients', because clients of one process share a connection",
    )
    yield Verdict(
        name="requests-are-spread",
        value="spread.l7.one",
        at_most=0.7,
        text="l7: at most {value:.0%} of one client's requests went to the same replica (eight clients: "
        "{m[spread.l7.eight]:.0%})",
    )
    yield Verdict(
        name="clients-can-spread",
        value="spread.client.one",
        at_most=0.7,
        text="client: at most {value:.0%}, without a balancer in between",
    )
    yield Verdict(
        name="sequences-break",
        value="sequences.l7.failed",
        at_least=1,
        text="l7: of {m[sequences.l7.requests]:.0f} requests in {m[sequences.l7.sequences]:.0f} sequences, {value:.0f} "
        "failed and {m[sequences.l7.wrong]:.0f} were answered wrongly",
    )
    yield Verdict(
        name="affinity-keeps-them",
        value="sequences.hash.broken",
        at_most=0,
        text="hash: of {m[sequences.hash.requests]:.0f} requests, {value:.0f} failed or were answered wrongly",
    )
    yield Verdict(
        name="the-others-go-on",
        value="sequences.hash.kill.others_broken",
        at_most=0,
        text="a replica was killed: {m[sequences.hash.kill.lost]:.0f} of {m[sequences.hash.kill.sequences]:.0f} "
        "sequences were lost with it and restarted; {value:.0f} of the others were disturbed",
    )
    yield Verdict(
        name="waiting-scales-computing-does-not",
        value="speed_up.ratio",
        at_least=1.2,
        timed=True,
        text="a second replica on this machine served {m[speed_up.waits]:.2f} times the requests/s of a model that "
        "waits, and {m[speed_up.computes]:.2f} times those of one that computes",
    )
    yield Verdict(
        name="no-request-is-lost",
        value="lost.unary_failed",
        at_most=0,
        text="one replica was killed and restarted, then both were restarted in turn: {value:.0f} of "
        "{m[lost.unary]:.0f} unary requests failed; {m[lost.cut_by_kill]:.0f} of {m[lost.streams]:.0f} streams were "
        "cut by the kill",
    )
    yield Verdict(
        name="a-rolling-restart-cuts-nothing",
        value="lost.cut_later",
        at_most=0,
        text="the rolling restart cut {value:.0f} streams",
    )
    yield Verdict(
        name="the-usual-signal-is-blind",
        value="signal.blindness",
        at_least=2,
        timed=True,
        text="both models at twice their capacity: Triton's queue-to-compute ratio is "
        "{m[signal.waits.queue_to_compute]:.1f} on the one behind Triton's queue, and "
        "{m[signal.streams.queue_to_compute]:.1f} on the one with its own loop, although a first token took "
        "{m[signal.streams.ttft_s]:.1f} s there",
    )
    yield Verdict(
        name="what-waits-is-seen",
        value="signal.least_waiting",
        at_least=4,
        timed=True,  # a client without a processor offers less than it is to
        text="the number of waiting requests shows both: {m[signal.waits.waiting]:.0f} and "
        "{m[signal.streams.waiting]:.0f}",
    )
    yield Verdict(
        name="the-loop-scales",
        value="signal.auto.replicas",
        at_least=2,
        timed=True,
        text="the autoscaler went to {value:.0f} replicas after {m[signal.auto.decided_s]:.0f} s; TTFT was "
        "{m[signal.auto.worst_s]:.1f} s at worst, and {m[signal.auto.last_s]:.1f} s at the end",
    )
    yield Verdict(
        name="first-tokens-come-back",
        value="signal.auto.back",
        at_most=0.7,
        timed=True,
        text="the TTFT of the last requests was {value:.0%} of the worst",
    )


LAB = Lab(
    short="scale",
    title="Beyond one server",
    summary="Load balancing, sequence affinity, the gain of a second replica, failure and restart, and when to scale.",
    settings=Settings,
    serves=[SCALED],
    run=run,
    guess=Guess(
        question="Two replicas stand behind a balancer of connections (l4). What share of one client's requests "
        "goes to the same replica?",
        value="spread.l4.one",
        unit="%",
    ),
    share_server=True,
)
