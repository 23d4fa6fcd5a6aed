"""Lab 20: dynamic batching in its smallest form; every answer says with how many others it was computed."""

from __future__ import annotations

from collections.abc import Iterator

from labctl.lab import Lab, LabRun, LabSettings, Place, Probe, Served, Stack, Verdict, setting


class Settings(LabSettings):
    max_batch_size: int = setting(8, "here the requests that may share an execution", ge=1, le=64)
    seconds: float = setting(0.05, "what one execution takes, whatever its size", ge=0, le=10)
    requests: int = setting(24, "requests that are sent at once", ge=2, le=1000, of_run=True)


def serve(s: Settings, at: Place) -> Served:
    return Served(
        repository=["./models"],
        parameters={"max_batch_size": s.max_batch_size, "seconds": s.seconds},
        probes={"till": Probe({"item": "bread"}, "generate")},
    )


TILL = Stack(name="till", title="one model that waits", models=["till"], serve=serve)


def run(lab: LabRun, s: Settings) -> Iterator[Verdict]:
    for phase, size in (("alone", 1), ("together", 8)):
        with lab.serving(TILL, max_batch_size=size) as server:
            server.client("client.py", phase)
    lab.report("report.py")
    yield Verdict(
        name="alone-means-alone",
        value="alone.largest_batch",
        at_most=1,
        text="max_batch_size 1: {m[alone.executions]:.0f} executions, {m[alone.seconds]:.1f} s",
    )
    yield Verdict(
        name="batches-formed",
        value="together.largest_batch",
        at_least=4,
        text="max_batch_size 8: up to {value:.0f} requests shared an execution, {m[together.seconds]:.1f} s in all",
    )


LAB = Lab(
    short="till",
    title="A till that takes as long for many as for one",
    summary="Dynamic batching in its smallest form; every answer says with how many others it was computed.",
    settings=Settings,
    serves=[TILL],
    run=run,
)
