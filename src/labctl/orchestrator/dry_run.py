"""``--dry-run``: every command, file and container that would be made, from the same plan; nothing is made or asked."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from labctl import repository
from labctl.engines.tensorrt_llm_commands import commands
from labctl.manifest.schema import Lab
from labctl.orchestrator.plan import Plan, Step, make_plan
from labctl.orchestrator.prepare import refuse
from labctl.orchestrator.run import chosen_phases, phase_choices
from labctl.orchestrator.session import Session
from labctl.orchestrator.up import UpOptions, launch_of
from labctl.runtimes.base import Endpoints, Record, Runtime, Shown


@dataclass
class DryRun:
    """What would be made, in order."""

    runtime: str
    profile: str
    notices: list[str] = field(default_factory=list)
    commands: list[Shown] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    containers: list[str] = field(default_factory=list)

    def run(self, commands: Iterable[Shown], again: bool = True) -> None:
        """Add commands and the containers that they make; without ``again`` only those that are not there yet."""
        for shown in commands:
            if again or shown not in self.commands:
                self.commands.append(shown)
            if shown.container and shown.container not in self.containers:
                self.containers.append(shown.container)

    def write(self, *files: str) -> None:
        self.files += [name for name in files if name not in self.files]


def dry_up(session: Session, lab: Lab, stack: str, options: UpOptions, only_engines: bool = False) -> DryRun:
    """What ``labctl up`` would do, or with ``only_engines`` what ``labctl engines build`` would.

    Raises:
        LabError: what ``up`` would refuse before it makes anything.
    """
    runtime = session.likely(options.runtime, options.choices.profile)
    found = DryRun(runtime.name, options.choices.profile)
    _add(session, lab, stack, options, runtime, found, only_engines)
    return found


def dry_bench(session: Session, lab: Lab, stack: str, options: UpOptions) -> DryRun:
    """What ``labctl bench`` would do: the stack up, requests from this very process, and down again."""
    found = dry_up(session, lab, stack, options)
    found.run(session.runtime(found.runtime).show_stop(stack))
    found.write(f"{session.workspace.results_dir(lab.folder) / 'TIME'}/")
    return found


def dry_render(plan: Plan, runtime: Runtime) -> DryRun:
    """What ``labctl render`` would write. Raises LabError for what it would refuse."""
    names = repository.listing(plan.request)
    return DryRun(
        runtime.name, plan.profile, list(plan.notices), files=[str(plan.request.output / name) for name in names]
    )


def dry_run(session: Session, lab: Lab, options: UpOptions, quick: bool, only: str = "") -> DryRun:
    """What ``labctl run`` would do: each phase's stack, its client, and down again; then the report."""
    assert lab.run is not None
    out = session.workspace.results_dir(lab.folder) / "TIME"
    runtime = session.likely(options.runtime, options.choices.profile)
    found = DryRun(runtime.name, options.choices.profile)
    folder = session.workspace.labs / lab.folder
    for phase in chosen_phases(lab, options.choices.profile, quick, only):
        choices = phase_choices(options.choices, phase)
        _add(session, lab, phase.stack, dataclasses.replace(options, choices=choices), runtime, found)
        context = out / f"context-{phase.name}.json"
        found.write(str(context))
        client = _seen(runtime, folder / phase.client, context)
        found.run(runtime.show_client(f"the client of phase {phase.name}", client, phase.stack))
        found.run(runtime.show_stop(phase.stack))
    found.write(*(str(out / name) for name in ("result.json", "report.md")), f"{out}/ (what else the clients write)")
    found.run(runtime.show_client("the report", _seen(runtime, folder / lab.run.report, out), ""))
    return found


def _add(
    session: Session, lab: Lab, stack: str, options: UpOptions, runtime: Runtime, found: DryRun,
    only_engines: bool = False,
) -> None:  # fmt: skip
    plan = make_plan(session.workspace, lab, stack, options.choices, runtime.server_path)
    refuse(plan, runtime)
    if only_engines:
        _ = plan.engines  # refused where there are none
    found.notices += [notice for notice in plan.notices if notice not in found.notices]
    _prepare(plan, runtime, found, only_engines)
    if not only_engines:
        _server(session, plan, runtime, options, found)


def _prepare(plan: Plan, runtime: Runtime, found: DryRun, only_engines: bool) -> None:
    """Images, templates, weights, engines: once, however many phases need them."""
    found.run(runtime.show_prepare(plan.profile, plan.image), again=False)
    if plan.release and plan.fetched and not plan.fetched.is_dir():
        found.run(runtime.show_copy_out(plan.image, plan.release.templates, plan.fetched), again=False)
        found.write(f"{plan.fetched}/")
    for step in plan.steps:
        if not step.ready():
            found.write(f"{step.path}/")
            found.run(_make(step, plan, runtime), again=False)


def _make(step: Step, plan: Plan, runtime: Runtime) -> list[Shown]:
    build = step.image_build
    if build is None:
        return runtime.show_tool(step.title, step.argv)
    scratch = step.path.with_name(f".checkpoint-{step.path.name}")
    weights = next(s.path for s in plan.steps if s.image_build is None)
    steps = commands(build.options, weights, scratch, step.path, build.source)
    return [
        shown
        for number, argv in enumerate(steps, 1)
        for shown in runtime.show_build(f"{step.title}, step {number} of {len(steps)}", plan.image, plan.ranks, argv)
    ]


def _server(session: Session, plan: Plan, runtime: Runtime, options: UpOptions, found: DryRun) -> None:
    bind = "0.0.0.0" if options.expose else "127.0.0.1"
    wanted = ["0", "0", "0"] if options.ports == "auto" else options.ports.split(",")
    record = Record(
        stack=plan.name, lab=plan.lab.folder, runtime=runtime.name, profile=plan.profile, settings=plan.settings,
        models=plan.stack.models, endpoints=Endpoints(*(f"{bind}:{port}" for port in wanted)),
        tokenizer_dir=plan.tokenizer_dir, effective=plan.effective,
    )  # fmt: skip
    launch = launch_of(session.workspace, plan, record, bind)
    found.write(*_files(plan), *runtime.show_files(launch), str(launch.log_file), f"{launch.run_dir}/")
    found.run(runtime.show_start(launch))


def _files(plan: Plan) -> list[str]:
    """The rendered repository; checked as far as its templates are there."""
    waiting = plan.fetched is not None and not plan.fetched.is_dir()
    names = [f"{model}/" for model in plan.stack.models] if waiting else repository.listing(plan.request)
    return [str(plan.request.output / name) + ("/" if name.endswith("/") else "") for name in names]


def _seen(runtime: Runtime, *paths: Path) -> Sequence[str]:
    return [runtime.client_path(path) for path in paths]
