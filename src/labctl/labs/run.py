"""``labctl run``: for each phase of a lab a server, its client, and down again; then the report and the verdicts."""

from __future__ import annotations

import contextlib
import json
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from labbuild import release
from labbuild.tensorrt_llm import TensorRtLlm
from labctl.clock.texts import keep_texts
from labctl.labs import paced
from labctl.labs.phases import chosen_phases, resolve_phases
from labctl.labs.servers import Servers
from labctl.labs.verdicts import NOT_MET, UNMEASURED, VerdictResult, judge_verdict, verdict_section
from labctl.manifest.schema import Lab, Phase
from labctl.options import Options
from labctl.replicas.stagehand import Stagehand, replica_endpoints
from labctl.runtimes import nvidia
from labctl.runtimes.base import Runtime
from labctl.runtimes.processes import describe_exit
from labctl.stack import edits, faults
from labctl.stack.session import Session
from labctl.stack.stack import RunningStack
from labctl.stack.up import death_of_stack
from labkit import contention
from labkit.disk import atomic_write, disk_errors
from labkit.errors import LabError
from labkit.results import flatten

SCRIPT = ("-m", "labkit.script")


@dataclass(frozen=True)
class RunResult:
    folder: Path
    result: Mapping[str, Any]
    verdicts: Sequence[VerdictResult]
    whole: bool  # every phase was run, so that nothing may be unmeasured
    edited: Sequence[str] = ()  # files that were not as shipped
    paced: str = ""  # what to say of times that a model of a GPU made

    @property
    def missed(self) -> list[str]:
        """The names of the verdicts that count as failed."""
        return [v.name for v in self.verdicts if v.word == NOT_MET or (self.whole and v.word == UNMEASURED)]


def run_lab(
    session: Session,
    lab: Lab,
    options: Options,
    quick: bool,
    keep: bool,
    only: str = "",
    texts: bool = False,
    replica: int | None = None,
) -> RunResult:
    """Run a lab whole.

    Args:
        only: a stack's name: only the phases on it are run.
        keep: the last phase's stack stays up.
        texts: the step log has every request's text, which takes a model up to 0.1 ms a step.
        replica: the clients talk to this server alone.

    Raises LabError: a phase failed; nothing is left and nothing is averaged.
    """
    runtime = session.choose(options.runtime, options.profile)
    phases = resolve_phases(session, lab, options, runtime, quick, only)
    out = new_results_folder(session, lab)
    edited: set[str] = set()
    taken: list[float] = []  # shares of the machine's processors, by other programs
    with ThreadPoolExecutor(2, "stagehand") as hands, Servers(session, lab) as servers:
        for number, phase_run in enumerate(phases, 1):
            phase = phase_run.phase
            for note in phase_run.notes:
                session.listener.note(note)
            last = number == len(phases)
            session.listener.note(f"phase {number} of {len(phases)}: {phase.name} (stack {phase.stack})")
            handle = servers.next(phase.stack, phase_run.options, keep and last)
            runtime, stack = handle.runtime, handle.name
            client_stack = replace(handle, record=handle.record.only(replica)) if replica else handle
            client = partial(run_client, client_stack, phase, out, quick)
            edited.update(edits.not_shipped(session, handle.plan))
            explain = faults.stack_explainer(handle)
            before = len(faults.whole_log(runtime, stack))
            try:
                kept_texts = keep_texts(handle.folder.run_dir()) if texts else nullcontext()
                stagehand = Stagehand(hands, handle, phase, out)
                with faults.watch_for_stalls(session, stack, explain), kept_texts, stagehand:
                    taken.append(contention.share_taken_by_others())  # the server is ready and idle
                    run_script(client, session, f"the client of phase {phase.name} failed", stack)
                    taken.append(contention.share_taken_by_others())
            except LabError as error:
                log = faults.whole_log(runtime, stack)[before:]
                details = [*error.details, *map(explain, faults.log_entries(log))]
                raise LabError(error.what, error.why, error.remedy, details, code=error.code) from error
    report = partial(run_report, session, lab, runtime, out)
    run_script(report, session, f"the report of lab {lab.short} could not be made")
    result = json.loads((out / "result.json").read_text(encoding="utf-8"))
    if options.profile == "gpu":
        result = add_gpus(result, options)
    if options.profile == "gpu" or edited:
        result = {**result, "edited": sorted(edited)}
        atomic_write(out / "result.json", json.dumps(result, indent=1))
    flat = flatten(result.get("metrics", {}))
    judged = [verdict for verdict in lab.verdicts if options.profile in verdict.profiles]
    verdicts = [judge_verdict(verdict, flat, max(taken)) for verdict in judged]
    _complete_report(out / "report.md", verdict_section(verdicts), paced.pace_section(out), edits.edits_section(edited))
    whole = len(phases) == len(chosen_phases(lab, options.profile, False, ""))
    return RunResult(out, result, verdicts, whole, sorted(edited), paced.describe_pace(out))


def _complete_report(page: Path, *sections: str) -> None:
    """Add sections to a lab's report, if it has written one."""
    if page.is_file():
        text = page.read_text(encoding="utf-8").rstrip()
        atomic_write(page, f"{text}\n{''.join(sections)}")


def add_gpus(result: Mapping[str, Any], options: Options) -> dict[str, Any]:
    """A result with what the report's container cannot see: this machine's GPU, and the release that served."""
    gpus = [asdict(gpu) for gpu in nvidia.gpus(options.gpu)]
    settings = dict(result["settings"])
    if settings.get("engine") == TensorRtLlm.name:
        settings["release"] = release.RELEASE
    return {**result, "settings": settings, "machine": {**result["machine"], "gpus": gpus}}


@contextlib.contextmanager
def results_folder(session: Session, lab: Lab) -> Iterator[Path]:
    """A new results folder, made before anything is measured; it is removed if the block leaves nothing in it."""
    folder = new_results_folder(session, lab)
    try:
        yield folder
    finally:
        with contextlib.suppress(OSError):
            folder.rmdir()


def new_results_folder(session: Session, lab: Lab) -> Path:
    """results/<lab>/<time>/, unique even when two runs start within one second."""
    base = session.workspace.results_dir(lab.folder)
    stamp = time.strftime("%Y%m%d-%H%M%S")
    with disk_errors(base):
        for suffix in ("", *(f"-{n}" for n in range(2, 100))):
            folder = base / f"{stamp}{suffix}"
            with contextlib.suppress(FileExistsError):
                folder.mkdir(parents=True)
                return folder
    raise LabError(f"cannot make a results folder in {base}", code="results-folder-failed")


def run_client(stack: RunningStack, phase: Phase, out: Path, quick: bool) -> int:
    """Run the client of a phase; its exit status."""
    from labkit.context import Context  # with its clients: nothing before a run's first phase needs them

    runtime, record = stack.runtime, stack.record
    context = Context(
        lab=stack.lab.folder,
        stack=record.stack,
        phase=phase.name,
        profile=record.profile,
        runtime=record.runtime,
        endpoints=vars(runtime.client_endpoints(record)),  # of the metrics, each server's
        settings=dict(record.settings),
        quick=quick,
        out=Path(runtime.client_path(out)),
        run_dir=Path(runtime.client_path(stack.folder.run_dir())),
        tokenizer_dir=runtime.client_path(Path(record.tokenizer_dir)) if record.tokenizer_dir else "",
        replicas=replica_endpoints(stack),
    )
    path = out / f"context-{phase.name}.json"
    script = stack.session.workspace.labs / stack.lab.folder / phase.client
    arguments, listener = [runtime.client_path(script), runtime.client_path(path)], stack.session.listener
    context.write(path)
    return runtime.client(listener, [*SCRIPT, *arguments], record.stack)


def run_report(session: Session, lab: Lab, runtime: Runtime, out: Path) -> int:
    """Have a lab's report made from the results in ``out``; its exit status."""
    assert lab.run is not None  # a lab without a run has no phases, and was refused for that
    script = session.workspace.labs / lab.folder / lab.run.report
    return runtime.client(session.listener, [*SCRIPT, runtime.client_path(script), runtime.client_path(out)], "")


def run_script(script: Callable[[], int], session: Session, failed: str, stack: str = "") -> None:
    """Run a script of the lab to its end. Raises KeyboardInterrupt: it alone was interrupted; LabError: it failed."""
    code = script()
    if code in (-signal.SIGINT, 128 + signal.SIGINT):
        raise KeyboardInterrupt
    if code:
        how = describe_exit(code)
        if dead := stack and death_of_stack(session, stack):
            raise LabError(
                failed,
                f"{how}; {dead.what}",
                f"labctl logs {stack} shows the server's side",
                details=dead.details,
                code="phase-failed",
            )
        raise LabError(failed, how, "its own message is above", code="phase-failed")
