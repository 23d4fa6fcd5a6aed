"""The scripts of a lab: the client of a phase and the report, run where the lab's clients live."""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

from labctl.listener import Listener
from labctl.manifest.schema import Lab, Phase
from labctl.replicas.stagehand import endpoints
from labctl.runtimes.actions import Action
from labctl.runtimes.base import Runtime
from labctl.runtimes.clients import Series
from labctl.runtimes.processes import describe_exit
from labctl.runtimes.record import Record
from labctl.stack.session import Session
from labctl.stack.up import death
from labkit.disk import atomic_write
from labkit.errors import LabError

SCRIPT = ("-m", "labkit.script")


def client(
    session: Session, lab: Lab, phase: Phase, runtime: Runtime, record: Record, out: Path, quick: bool,
    shared: Series | None = None,
) -> Action[int]:  # fmt: skip
    """The client of a phase: in a process of its own, or one of those that share one."""
    context = {
        "lab": lab.folder,
        "stack": record.stack,
        "phase": phase.name,
        "profile": record.profile,
        "runtime": record.runtime,
        "endpoints": vars(runtime.client_endpoints(record)),  # of the metrics, each server's
        "settings": dict(record.settings),
        "quick": quick,
        "out": runtime.client_path(out),
        "run_dir": runtime.client_path(session.workspace.folder(record.stack).run_dir()),
        "tokenizer_dir": runtime.client_path(Path(record.tokenizer_dir)) if record.tokenizer_dir else "",
        "replicas": endpoints(runtime, record),
        "color": sys.stdout.isatty() and "NO_COLOR" not in os.environ,
    }
    path = out / f"context-{phase.name}.json"
    script = session.workspace.labs / lab.folder / phase.client
    arguments, title = [runtime.client_path(script), runtime.client_path(path)], f"the client of phase {phase.name}"
    if shared:
        action = shared.client(title, arguments, path)
    else:
        action = runtime.client(title, [*SCRIPT, *arguments], record.stack)

    def do(listener: Listener) -> int:
        atomic_write(path, json.dumps(context, indent=1))
        return action.do(listener)

    return replace(action, do=do, files=[str(path), f"{out}/"], expected=0)


def report(session: Session, lab: Lab, runtime: Runtime, out: Path) -> Action[int]:
    assert lab.run is not None  # a lab without a run has no phases, and was refused for that
    script = session.workspace.labs / lab.folder / lab.run.report
    action = runtime.client("the report", [*SCRIPT, runtime.client_path(script), runtime.client_path(out)], "")
    return replace(action, files=[str(out / "result.json"), str(out / "report.md")], expected=0)


def finish(action: Action[int], session: Session, failed: str, stack: str = "") -> None:
    """Run a script of the lab to its end. Raises KeyboardInterrupt where it alone was interrupted, or LabError."""
    code = session.do(action)
    if code in (-signal.SIGINT, 128 + signal.SIGINT):
        raise KeyboardInterrupt
    if code:
        how = describe_exit(code)
        if dead := stack and death(session, stack):
            raise LabError(failed, f"{how}; {dead.what}", f"labctl logs {stack} shows the server's side",
                           details=dead.details)  # fmt: skip
        raise LabError(failed, how, "its own message is above")
