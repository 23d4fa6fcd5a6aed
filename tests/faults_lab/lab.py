"""Two small models without weights, one of which behaves as it is told: for the tests of the runtimes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from labctl.lab import Lab, LabRun, LabSettings, Place, Probe, Served, Stack, Verdict, setting


class Settings(LabSettings):
    behaviour: Literal["serve", "slow", "refuse", "kill", "hog"] = setting("serve", "what moody does while it loads")
    seconds: float = setting(0, "how long the slow one takes")
    client_seconds: float = setting(0, "how long the client takes", of_run=True)


def serve(s: Settings, at: Place) -> Served:
    return Served(
        repository=["faults"],
        parameters={"behaviour": s.behaviour, "seconds": s.seconds},
        probes={"moody": Probe({"text_input": "hello"}, "generate")},
    )


QUICK, TOO = (
    Stack(name=name, title="one of two that may be up side by side", models=["echo", "moody"], serve=serve)
    for name in ("quick", "quick-too")
)


def run(lab: LabRun, s: Settings) -> Iterator[Verdict]:
    with lab.serving(QUICK) as server:
        server.client("client.py", "only")
    lab.report("report.py")
    yield Verdict(name="echoed", value="echoed", at_least=1, text="the echo came back {value:.0f} times")


LAB = Lab(
    short="faults",
    title="Two small models without weights, one of which behaves as it is told",
    summary="For the tests of the runtimes. A stack of it is up in a second or two.",
    settings=Settings,
    serves=[QUICK, TOO],
    run=run,
)
