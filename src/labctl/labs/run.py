"""``labctl run``: the program of a lab, with the servers that it opens, its clients, its report and its verdicts."""

from __future__ import annotations

import contextlib
import json
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from labbuild import release
from labbuild.tensorrt_llm import TensorRtLlm
from labctl import contention
from labctl.catalog import broken_lab, refuse_mistakes
from labctl.clock import keep_texts
from labctl.lab import Lab, ServerOfRun, Stack, Verdict
from labctl.labs.servers import Servers
from labctl.labs.verdicts import NOT_MET, UNMEASURED, VerdictResult, judge_verdict, verdict_section
from labctl.listener import Silent
from labctl.options import Options
from labctl.plan import make_plan
from labctl.replicas.stagehand import Stagehand, replica_endpoints
from labctl.runtimes import nvidia
from labctl.runtimes.base import Runtime
from labctl.runtimes.compose_project import client_endpoints
from labctl.runtimes.processes import describe_exit
from labctl.settings import format_setting, holds, resolve
from labctl.stack import edits, faults
from labctl.stack.session import Session
from labctl.stack.stack import RunningStack
from labctl.stack.status import death_of_stack
from labkit.disk import atomic_write, disk_errors
from labkit.errors import LabError
from labkit.evidence.results import flatten
from labsched.log.files import open_to_read
from labsched.log.steplog import parse_step_line

SCRIPT = ("-m", "labkit.script")


@dataclass(frozen=True)
class RunResult:
    folder: Path
    result: Mapping[str, Any]
    verdicts: Sequence[VerdictResult]
    whole: bool  # so that nothing may be unmeasured
    edited: Sequence[str] = ()  # files that were not as shipped
    paced: str | None = None  # what to say of times that a model of a GPU made

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
    texts: bool = False,
    replica: int | None = None,
) -> RunResult:
    """Run a lab's program whole.

    Args:
        keep: its last server stays up.
        texts: the step log has every request's text, which takes a model up to 0.1 ms a step.
        replica: the clients talk to this server alone.

    Raises LabError: the program has a mistake, so that nothing is started; or a client failed, and nothing is averaged.
    """
    if lab.run is None:
        raise LabError(
            f"lab {lab.folder} has no program", "", f"labctl up {lab.serves[0].name}", code="lab-not-runnable"
        )
    chosen = resolve(lab, options.profile, options.set, what=f"lab {lab.short}")
    runtime = session.choose(options.runtime, options.profile)
    with refuse_mistakes(session.workspace, lab.folder):
        list(lab.run(_Rehearsal(replace(session, listener=Silent()), lab, options, quick), chosen))
    out = new_results_folder(session, lab)
    with ThreadPoolExecutor(2, "stagehand") as hands, Servers(session, lab, keep) as servers:
        run = _Run(session, lab, options, quick, texts, replica, runtime, out, hands, servers)
        verdicts = list(lab.run(run, chosen))
    result = json.loads((out / "result.json").read_text(encoding="utf-8"))
    if options.profile == "gpu":
        result = add_gpus(result, options)
    if options.profile == "gpu" or run.edited:
        result = {**result, "edited": sorted(run.edited)}
    whole = not quick and not options.set  # with other settings a program may leave something out
    judged = _judge(run, verdicts, flatten(result.get("metrics", {})), whole)
    result = {**result, "verdicts": [asdict(verdict) for verdict in judged]}
    atomic_write(out / "result.json", json.dumps(result, indent=1))
    pace = pace_section(out)
    _complete_report(out / "report.md", verdict_section(judged), pace, edits.edits_section(run.edited))
    return RunResult(out, result, judged, whole, sorted(run.edited), describe_pace(out))


def _judge(run: _Run, verdicts: Sequence[Verdict], flat: Mapping[str, Any], whole: bool) -> list[VerdictResult]:
    """Judge what a run measured. Raises LabError: the text of a verdict does not fit what a whole run measures."""
    judged = []
    for verdict in verdicts:
        lost = [name for name in verdict.metrics if name not in flat]
        if whole and lost and flat.get(verdict.value) is not None:
            error = LookupError(f"{run.out}/result.json has no metric {lost[0]} for the text of {verdict.name}")
            raise broken_lab(run.session.workspace, run.lab.folder, error, f"m[{lost[0]}")
        try:
            judged.append(judge_verdict(verdict, flat, max(run.taken, default=0.0)))
        except (TypeError, ValueError) as error:
            raise broken_lab(run.session.workspace, run.lab.folder, error, f'"{verdict.name}"') from error
    return judged


@dataclass
class _Rehearsal:
    """What the program of a lab runs with before its run (:class:`labctl.lab.LabRun`).

    Nothing is started, but every server is planned and every script is looked for.
    """

    session: Session
    lab: Lab
    options: Options
    quick: bool

    @property
    def profile(self) -> str:
        return self.options.profile

    def require(self, profile: str) -> None:
        if self.profile != profile:
            raise LabError(
                f"lab {self.lab.short} is not run on the {self.profile} profile",
                "",
                f"labctl run {self.lab.short} --profile {profile}",
                code="run-not-on-profile",
            )

    @contextlib.contextmanager
    def serving(
        self, stack: Stack, *, replicas: int | None = None, balance: str | None = None, **settings: Any
    ) -> Iterator[ServerOfRun]:
        options = replace(self.options, set=self._together(stack, settings))
        plan = make_plan(self.session.workspace, self.lab, stack.name, options)
        plan.require_templates(self.session.workspace).files()
        yield self

    def client(self, script: str, phase: str) -> None:
        if not script_of(self.session, self.lab, script).is_file():
            raise FileNotFoundError(f"there is no script {script_of(self.session, self.lab, script)}")

    def report(self, script: str) -> None:
        self.client(script, "")

    def _together(self, stack: Stack, own: Mapping[str, Any]) -> dict[str, Any]:
        """Lay the program's settings over a person's; one that has no effect with the others is left out and told."""
        asked, declared = self.options.set, self.lab.declared
        usual = {key: setting.default[self.profile] for key, setting in declared.items()}
        together = {**usual, **stack.settings, **asked, **own}
        given = {**asked, **own}
        idle = [key for key in given if key in declared and not holds(declared[key], together, self.profile)]
        for key in idle:
            self.session.listener.note(f"{key} is left out: it means nothing beside the other settings here")
        for key, value in own.items():
            if key in asked and key not in idle and format_setting(value) != format_setting(asked[key]):
                self.session.listener.note(f"this part is about {key}={format_setting(value)}, whatever --set says")
        return {key: value for key, value in given.items() if key not in idle}


@dataclass
class _Run(_Rehearsal):
    """What the program of a lab runs with.

    Attributes:
        edited: the files of its servers that are not as shipped.
        taken: shares of the machine's processors that other programs took.
    """

    texts: bool
    replica: int | None
    runtime: Runtime
    out: Path
    hands: ThreadPoolExecutor
    servers: Servers
    edited: set[str] = field(default_factory=set)
    taken: list[float] = field(default_factory=list)

    @contextlib.contextmanager
    def serving(
        self, stack: Stack, *, replicas: int | None = None, balance: str | None = None, **settings: Any
    ) -> Iterator[ServerOfRun]:
        options = replace(self.options, set=self._together(stack, settings))
        if replicas or balance:
            options = replace(options, replicas=replicas, balance=balance)
        self.session.listener.note(f"{self.lab.short}: {self._in_words(stack, settings)}")
        yield _Opened(self, self.servers.next(stack.name, options))

    def report(self, script: str) -> None:
        make = partial(run_report, self.session, self.lab, script, self.runtime, self.out)
        run_script(make, self.session, f"the report of lab {self.lab.short} could not be made")

    @staticmethod
    def _in_words(stack: Stack, settings: Mapping[str, Any]) -> str:
        return " ".join([f"stack {stack.name}", *(f"{key}={format_setting(value)}" for key, value in settings.items())])


@dataclass(frozen=True)
class _Opened:
    """A server of a run (:class:`labctl.lab.ServerOfRun`)."""

    run: _Run
    handle: RunningStack

    def client(self, script: str, phase: str) -> None:
        run, handle, session = self.run, self.handle, self.run.session
        runtime, stack = handle.runtime, handle.name
        session.listener.note(f"phase {phase}")
        client_stack = replace(handle, record=handle.record.only(run.replica)) if run.replica else handle
        client = partial(run_client, client_stack, script, phase, run.out, run.quick)
        run.edited.update(edits.not_shipped(session, handle.plan))
        explain = faults.stack_explainer(handle)
        before = len(faults.whole_log(runtime, stack))
        try:
            kept_texts = keep_texts(handle.folder.run_dir()) if run.texts else nullcontext()
            stagehand = Stagehand(run.hands, handle, phase, run.out)
            with faults.watch_for_stalls(session, stack, explain), kept_texts, stagehand:
                run.taken.append(contention.share_taken_by_others())  # the server is ready and idle
                run_script(client, session, f"the client of phase {phase} failed", stack)
                run.taken.append(contention.share_taken_by_others())
        except LabError as error:
            log = faults.whole_log(runtime, stack)[before:]
            details = [*error.details, *map(explain, faults.log_entries(log))]
            raise LabError(error.what, error.why, error.remedy, details, code=error.code) from error


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


def script_of(session: Session, lab: Lab, script: str) -> Path:
    """The path of a script of a lab."""
    return session.workspace.labs / lab.folder / script


def run_client(stack: RunningStack, script: str, phase: str, out: Path, quick: bool) -> int:
    """Run a client of a lab; what it writes is named after the phase. Returns its exit status."""
    from labkit.client.context import Context

    record = stack.record
    context = Context(
        lab=stack.lab.folder,
        stack=record.stack,
        phase=phase,
        profile=record.profile,
        runtime=record.runtime,
        endpoints=vars(client_endpoints(record)),  # of the metrics, each server's
        settings=dict(record.settings),
        quick=quick,
        out=out,
        run_dir=stack.folder.run_dir(),
        tokenizer_dir=record.tokenizer_dir,
        replicas=replica_endpoints(stack),
    )
    path = out / f"context-{phase}.json"
    client = script_of(stack.session, stack.lab, script)
    context.write(path)
    return stack.runtime.client(stack.session.listener, [*SCRIPT, str(client), str(path)], record)


def run_report(session: Session, lab: Lab, script: str, runtime: Runtime, out: Path) -> int:
    """Have a lab's report made from the results in ``out``; its exit status."""
    path = script_of(session, lab, script)
    return runtime.client(session.listener, [*SCRIPT, str(path), str(out)], None)


def run_script(script: Callable[[], int], session: Session, failed: str, stack: str | None = None) -> None:
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


def describe_pace(out: Path) -> str | None:
    """Return a sentence for people about a folder of results; None where no step of its logs was paced."""
    steps = late = 0
    for path in sorted(out.glob("steps-*.jsonl")):
        with open_to_read(path) as stream:
            for line in stream:
                data = parse_step_line(line) or {}
                if "paced_us" in data:
                    steps += 1
                    late += data["engine_us"] > data["paced_us"]
    if not steps:
        return None
    text = f"the times are those of a model of a GPU in slow motion (pace), for {steps:,} steps; no GPU was measured"
    return f"{text}; {late:,} of them took longer than it says: raise pace_slower" if late else text


def pace_section(out: Path) -> str:
    """The same as a part of report.md."""
    notice = describe_pace(out)
    return f"\n## A model of a GPU\n\n{notice[0].upper()}{notice[1:]}.\n" if notice else ""
