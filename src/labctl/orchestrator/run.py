"""``labctl run``: for each phase of a lab a server, its client, and down again; then the report and the verdicts."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from labctl.engines.tensorrt_llm import TensorRtLlm
from labctl.errors import LabError
from labctl.manifest.schema import Lab
from labctl.measure.results import flatten
from labctl.orchestrator import edits, faults, running, scripts
from labctl.orchestrator.down import sweep
from labctl.orchestrator.phases import chosen_phases, resolved
from labctl.orchestrator.plan import Choices
from labctl.orchestrator.servers import Servers, ends_at_once, goes_on, shared
from labctl.orchestrator.session import Session
from labctl.orchestrator.stagehand import Stagehand
from labctl.orchestrator.texts import wanted
from labctl.orchestrator.todo import Todo
from labctl.orchestrator.up import BringUp, UpOptions, dry_steps
from labctl.orchestrator.verdicts import NOT_MET, VerdictResult, judge, section
from labctl.runtimes import nvidia
from labctl.runtimes.clients import Series
from labctl.trtllm import releases
from labctl.workspace import atomic_write, require_own


@dataclass(frozen=True)
class RunResult:
    folder: Path
    result: Mapping[str, Any]
    verdicts: Sequence[VerdictResult]
    whole: bool  # every phase was run, so that nothing may be unmeasured
    edited: Sequence[str] = ()  # files that were not as shipped

    @property
    def missed(self) -> list[str]:
        """The names of the verdicts that count as failed."""
        return [v.name for v in self.verdicts if v.word == NOT_MET or (self.whole and not v.met)]


def run(
    session: Session, lab: Lab, options: UpOptions, quick: bool, keep: bool, only: str = "", texts: bool = False,
    replica: int | None = None,
) -> RunResult:  # fmt: skip
    """Run a lab whole.

    Args:
        only: a stack's name: only the phases on it are run.
        keep: the last phase's stack stays up.
        texts: the step log has every request's text, which takes a model up to 0.1 ms a step.
        replica: the clients talk to this server alone.

    Raises:
        LabError: a phase failed; nothing is left and nothing is averaged.
    """
    runtime = session.choose(options.runtime, options.choices.profile)
    phases = resolved(session, lab, options, runtime, quick, only)
    sweep(session)
    out = new_results_folder(session, lab)
    edited: set[str] = set()
    with ThreadPoolExecutor(2, "stagehand") as hands, Servers(session, lab) as servers:
        for number, one in enumerate(phases, 1):
            for note in one.notes:
                session.listener.note(note)
            last = number == len(phases)
            session.listener.note(f"phase {number} of {len(phases)}: {one.phase.name} (stack {one.phase.stack})")
            handle = servers.next(one.phase.stack, one.options, keep and last)
            runtime, stack = handle.runtime, handle.record.stack
            edited.update(edits.not_shipped(session, running.plan_of(session, lab, runtime, handle.record)))
            record = handle.record.only(replica) if replica else handle.record
            client = scripts.client(session, lab, one.phase, runtime, record, out, quick, servers.clients)
            explain = running.explainer(session, lab, runtime, handle.record)
            before = len(running.whole_log(runtime, stack))
            try:
                written = wanted(session.workspace.run_dir(stack)) if texts else nullcontext()
                hand = Stagehand(hands, session, lab, one.phase, runtime, stack, out)
                with running.watched(session, stack, explain), written, hand:
                    scripts.finish(client, session, f"the client of phase {one.phase.name} failed", stack)
            except LabError as error:
                log = running.whole_log(runtime, stack)[before:]
                details = [*error.details, *map(explain, faults.entries(log))]
                raise LabError(error.what, error.why, error.remedy, details) from error
    scripts.finish(
        scripts.report(session, lab, runtime, out), session, f"the report of lab {lab.short} could not be made"
    )
    result = json.loads((out / "result.json").read_text(encoding="utf-8"))
    if options.choices.profile == "gpu":
        result = with_gpus(result, options.choices)
    if options.choices.profile == "gpu" or edited:
        result = {**result, "edited": sorted(edited)}
        atomic_write(out / "result.json", json.dumps(result, indent=1))
    flat = flatten(result.get("metrics", {}))
    verdicts = [judge(verdict, flat) for verdict in lab.verdicts if options.choices.profile in verdict.profiles]
    report = out / "report.md"
    if report.is_file():
        atomic_write(
            report, report.read_text(encoding="utf-8").rstrip() + "\n" + section(verdicts) + edits.section(edited)
        )
    whole = len(phases) == len(chosen_phases(lab, options.choices.profile, False, ""))
    return RunResult(out, result, verdicts, whole, sorted(edited))


def dry_run(session: Session, lab: Lab, options: UpOptions, quick: bool, only: str = "") -> Todo:
    """What :func:`run` would do: each phase's stack, its client, and down again; then the report."""
    out = session.workspace.results_dir(lab.folder) / "TIME"
    runtime = session.likely(options.runtime, options.choices.profile)
    todo = Todo(runtime.name, options.choices.profile)
    before: BringUp | None = None
    clients: Series | None = None
    for one in resolved(session, lab, options, runtime, quick, only):
        stack = one.phase.stack
        steps = dry_steps(session, lab, stack, one.options, runtime)
        todo.say([*one.notes, *steps.plan.notices])
        if before and goes_on(session, before.plan, before.record, steps.plan, steps.record):
            stop = todo.actions.pop()
            todo.prepare(steps.prepare)
            todo.actions.append(replace(steps.render, title=f"the models of {stack} that differ, loaded anew"))
            if before.record.balance != steps.record.balance:
                todo.actions.append(runtime.front(steps.record))
        else:
            todo.prepare(steps.prepare)
            todo.actions += [steps.render, steps.start]
            clients = runtime.clients(stack) if shared(lab) else None
            todo.actions += [clients.start()] if clients else []
            stop = runtime.stop(stack, ends_at_once(options.choices.profile))
        todo.actions += [scripts.client(session, lab, one.phase, runtime, steps.record, out, quick, clients), stop]
        before = steps
    todo.actions.append(scripts.report(session, lab, runtime, out))
    return todo


def with_gpus(result: Mapping[str, Any], choices: Choices) -> dict[str, Any]:
    """A result with what the report's container cannot see: this machine's GPUs, and the release that served."""
    gpus = [asdict(gpu) for gpu in nvidia.gpus()]
    settings = dict(result["settings"])
    if settings.get("engine") == TensorRtLlm.name:
        settings["release"] = releases.release(choices.release).name
    return {**result, "settings": settings, "machine": {**result["machine"], "gpus": gpus}}


def new_results_folder(session: Session, lab: Lab) -> Path:
    """results/<lab>/<time>/, unique even when two runs start within one second."""
    base = session.workspace.results_dir(lab.folder)
    for folder in (base.parent, base):
        require_own(folder, "folder")
    stamp = time.strftime("%Y%m%d-%H%M%S")
    for suffix in ("", *(f"-{n}" for n in range(2, 100))):
        folder = base / f"{stamp}{suffix}"
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:
            continue
    raise LabError(f"cannot make a results folder in {base}")
