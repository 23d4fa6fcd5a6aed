"""``labctl run``: for each phase of a lab a server, its client, and down again; then the report and the verdicts."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from labctl.engines.tensorrt_llm import TensorRtLlm
from labctl.errors import LabError
from labctl.manifest.schema import Lab, Phase, Verdict
from labctl.manifest.settings import resolve
from labctl.measure.results import flatten
from labctl.orchestrator.plan import Choices
from labctl.orchestrator.session import Session
from labctl.orchestrator.up import Up, UpOptions, sweep, take_down, up
from labctl.runtimes import nvidia
from labctl.runtimes.base import Runtime
from labctl.trtllm import releases
from labctl.workspace import atomic_write


@dataclass(frozen=True)
class VerdictResult:
    """A verdict with its measurement. ``value`` is None where the run did not measure it."""

    name: str
    text: str
    value: float | None
    met: bool


@dataclass(frozen=True)
class RunResult:
    folder: Path
    result: Mapping[str, Any]
    verdicts: Sequence[VerdictResult]


@contextmanager
def ephemeral(session: Session, lab: Lab, stack: str, options: UpOptions, keep: bool = False) -> Any:
    """A stack for the time of a block, taken down however the block ends (unless it was up before, or ``keep``)."""
    handle = up(session, lab, stack, options, ephemeral=not keep)
    try:
        yield handle
    finally:
        if not handle.already and not keep:
            take_down(session, handle.runtime, stack, force=sys.exc_info()[0] is not None)


def run(session: Session, lab: Lab, options: UpOptions, quick: bool, keep: bool, only: str = "") -> RunResult:
    """Run a lab whole.

    Args:
        only: a stack's name: only the phases on it are run.
        keep: the last phase's stack stays up.

    Raises:
        LabError: a phase failed; nothing is left and nothing is averaged.
    """
    if lab.run is None:
        raise LabError(f"lab {lab.folder} has no run section in its lab.yaml")
    phases = chosen_phases(lab, options.choices.profile, quick, only)
    resolve(lab.settings, options.choices.profile, options.choices.set, what=f"lab {lab.short}")
    sweep(session)
    out = new_results_folder(session, lab)
    runtime: Runtime | None = None
    for number, phase in enumerate(phases, 1):
        session.listener.note(f"phase {number} of {len(phases)}: {phase.name} (stack {phase.stack})")
        last = number == len(phases)
        with _phase_stack(session, lab, phase, options, keep and last) as handle:
            runtime = handle.runtime
            _client(session, lab, phase, handle, out, quick)
    assert runtime is not None
    script = session.workspace.labs / lab.folder / lab.run.report
    code = runtime.run_client([runtime.client_path(script), runtime.client_path(out)], None, out, session.listener)
    if code:
        raise LabError(f"the report of lab {lab.short} could not be made", f"exit status {code}", f"see {out}")
    result = json.loads((out / "result.json").read_text(encoding="utf-8"))
    if options.choices.profile == "gpu":
        result = with_gpus(result, options.choices)
        atomic_write(out / "result.json", json.dumps(result, indent=1))
    flat = flatten(result.get("metrics", {}))
    verdicts = [judge(verdict, flat) for verdict in lab.verdicts if options.choices.profile in verdict.profiles]
    return RunResult(out, result, verdicts)


def with_gpus(result: Mapping[str, Any], choices: Choices) -> dict[str, Any]:
    """A result with what the report's container cannot see: this machine's GPUs, and the release that served."""
    gpus = [asdict(gpu) for gpu in nvidia.gpus()]
    settings = dict(result["settings"])
    if settings.get("engine") == TensorRtLlm.name:
        settings["release"] = releases.release(choices.release).name
    return {**result, "settings": settings, "machine": {**result["machine"], "gpus": gpus}}


def chosen_phases(lab: Lab, profile: str, quick: bool, only: str) -> list[Phase]:
    """The phases of a run. Raises LabError if there is none."""
    every = lab.run.phases if lab.run else []
    phases = [p for p in every if (not quick or p.quick) and only in ("", p.stack) and profile in p.profiles]
    if not phases:
        what = f"for stack {only}" if only else f"on the {profile} profile"
        raise LabError(f"lab {lab.short} has no phase {what}", "", f"labctl run {lab.short}")
    return phases


def phase_choices(choices: Choices, phase: Phase) -> Choices:
    """The phase's own settings are what the phase is about: they win over a person's."""
    return replace(choices, set={**choices.set, **phase.set})


def _phase_stack(
    session: Session, lab: Lab, phase: Phase, options: UpOptions, keep: bool
) -> AbstractContextManager[Up]:
    choices = phase_choices(options.choices, phase)
    manager: AbstractContextManager[Up] = ephemeral(session, lab, phase.stack, replace(options, choices=choices), keep)
    return manager


def _client(session: Session, lab: Lab, phase: Phase, handle: Up, out: Path, quick: bool) -> None:
    runtime, record = handle.runtime, handle.record
    context = {
        "lab": lab.folder,
        "stack": record.stack,
        "phase": phase.name,
        "profile": record.profile,
        "runtime": record.runtime,
        "endpoints": vars(runtime.client_endpoints(record)),
        "settings": dict(record.settings),
        "quick": quick,
        "out": runtime.client_path(out),
        "run_dir": runtime.client_path(session.workspace.run_dir(record.stack)),
        "tokenizer_dir": runtime.client_path(Path(record.tokenizer_dir)) if record.tokenizer_dir else "",
        "color": sys.stdout.isatty() and "NO_COLOR" not in os.environ,
    }
    path = out / f"context-{phase.name}.json"
    atomic_write(path, json.dumps(context, indent=1))
    script = session.workspace.labs / lab.folder / phase.client
    code = runtime.run_client([runtime.client_path(script), runtime.client_path(path)], record, out, session.listener)
    if code:
        how = f"exit status {code}"
        gone = session.find(record.stack) is None
        raise LabError(
            f"the client of phase {phase.name} failed",
            f"{how}; the server is gone as well" if gone else how,
            "labctl logs shows the server's side" if gone else "its own message stands above",
        )


def new_results_folder(session: Session, lab: Lab) -> Path:
    """results/<lab>/<time>/, unique even when two runs start within one second."""
    base = session.workspace.results_dir(lab.folder)
    stamp = time.strftime("%Y%m%d-%H%M%S")
    for suffix in ("", *(f"-{n}" for n in range(2, 100))):
        folder = base / f"{stamp}{suffix}"
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:
            continue
    raise LabError(f"cannot make a results folder in {base}")


def judge(verdict: Verdict, flat: Mapping[str, Any]) -> VerdictResult:
    """Hold one verdict against the measured numbers; a number that is missing is never 'met'."""
    value = flat.get(verdict.value)
    if not isinstance(value, int | float):
        return VerdictResult(verdict.name, f"{verdict.name}: not measured in this run", None, False)
    met = (verdict.at_least is None or value >= verdict.at_least) and (
        verdict.at_most is None or value <= verdict.at_most
    )
    try:
        text = verdict.text.format(value=value, m=flat)
    except (KeyError, ValueError, IndexError):
        text = f"{verdict.name}: {value:g}"
    return VerdictResult(verdict.name, text, float(value), met)
