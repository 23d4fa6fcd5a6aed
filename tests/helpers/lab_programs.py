"""A lab's program with little more than it must have; and a lab's own program, run without any server."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labctl.catalog import load_catalog
from labctl.lab import Lab, ServerOfRun, Stack, Verdict
from labctl.settings import resolve
from labctl.workspace import Workspace
from labkit.errors import LabError

MINIMAL = """
from typing import Literal
from labctl.lab import Lab, LabSettings, Place, Probe, Served, Stack, setting

class Settings(LabSettings):
    size: int = setting(1, "h", ge=1, le=9)
    engine: Literal["fast", "plain"] = setting("plain", "h")

def serve(s: Settings, at: Place) -> Served:
    return Served(repository=["./models"], parameters={"n": s.size}, probes={"m": Probe({})})

DEMO = Stack(name="demo-stack", title="t", models=["m"], serve=serve)
LAB = Lab(short="demo", title="t", summary="s", settings=Settings, serves=[DEMO])
"""


def write(root: Path, folder: str = "09-demo", program: str = MINIMAL) -> Workspace:
    """Write a lab where a catalogue finds it."""
    lab = root / "labs" / folder
    (lab / "models").mkdir(parents=True, exist_ok=True)
    (lab / "lab.py").write_text(program)
    return Workspace(root, root / "cache")


@dataclass
class Rehearsal:
    """A run of a lab's program that opens nothing.

    Attributes:
        opened: the stack and the settings of each server.
        clients: the script and phase of each client.
    """

    profile: str
    quick: bool = False
    opened: list[tuple[Stack, dict[str, Any]]] = field(default_factory=list)
    clients: list[tuple[str, str]] = field(default_factory=list)
    reports: list[str] = field(default_factory=list)
    verdicts: Sequence[Verdict] = ()

    def require(self, profile: str) -> None:
        if self.profile != profile:
            raise LabError("not on this profile", code="run-not-on-profile")

    @contextlib.contextmanager
    def serving(
        self, stack: Stack, *, replicas: int | None = None, balance: str | None = None, **settings: Any
    ) -> Iterator[ServerOfRun]:
        self.opened.append((stack, settings))
        yield self

    def client(self, script: str, phase: str) -> None:
        self.clients.append((script, phase))

    def report(self, script: str) -> None:
        self.reports.append(script)


def rehearse(lab: Lab, profile: str = "cpu", quick: bool = False, **settings: Any) -> Rehearsal:
    """Run a lab's program without servers. Raises LabError: it is not run on that profile."""
    assert lab.run
    run = Rehearsal(profile, quick)
    run.verdicts = list(lab.run(run, resolve(lab, profile, settings)))
    return run


def unproven(lab: str, result: Mapping[str, Any]) -> list[str]:
    """The verdicts of a run's result that are not met, and no machine's load is why; those that were not measured too.

    A timed verdict that is not met says nothing beside other tests: they compute between the moments at which labctl
    looks how busy the machine is.
    """
    found = load_catalog(Workspace.find(Path(__file__))).lab(lab)
    timed = {verdict.name for verdict in rehearse(found).verdicts if verdict.timed}
    verdicts = result["verdicts"]
    assert verdicts
    return [one["name"] for one in verdicts if one["value"] is None or not (one["met"] or one["name"] in timed)]
