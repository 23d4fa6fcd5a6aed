"""``--dry-run``: every command, file and container that would be made, from the same plan; nothing is made or asked."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from labctl import repository
from labctl.catalog import Lab
from labctl.engines.tensorrt_llm import commands
from labctl.orchestrator.plan import Plan, make_plan
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

    def add(self, other: DryRun) -> None:
        """Take over what this one has not named yet."""
        for mine, theirs in (
            (self.notices, other.notices), (self.files, other.files), (self.containers, other.containers)
        ):  # fmt: skip
            mine += [text for text in theirs if text not in mine]
        self.commands += [shown for shown in other.commands if shown not in self.commands]


def dry_up(session: Session, lab: Lab, stack: str, options: UpOptions, only_engines: bool = False) -> DryRun:
    """What ``labctl up`` would do, or with ``only_engines`` what ``labctl engines build`` would.

    Raises:
        LabError: what ``up`` would refuse before it makes anything.
    """
    runtime = session.likely(options.runtime, options.choices.profile)
    plan = make_plan(session.workspace, lab, stack, options.choices, runtime.server_path)
    refuse(plan, runtime)
    found = DryRun(runtime.name, plan.profile, list(plan.notices))
    found.commands += runtime.show_prepare(plan.profile, plan.image)
    if plan.release and plan.fetched and not plan.fetched.is_dir() and not only_engines:
        found.commands += runtime.show_copy_out(plan.image, plan.release.templates, plan.fetched)
        found.files.append(f"{plan.fetched}/")
    for step in plan.steps:
        if step.ready():
            continue
        found.files.append(f"{step.path}/")
        if step.image_build is None:
            found.commands += runtime.show_tool(step.argv)
            continue
        build = step.image_build
        scratch = step.path.with_name(f".checkpoint-{step.path.name}")
        weights = next(s.path for s in plan.steps if s.image_build is None)
        for argv in commands(build.options, weights, scratch, step.path):
            found.commands += runtime.show_build(plan.image, plan.ranks, argv)
    if not only_engines:
        _server(session, plan, runtime, options, found)
    return found


def _server(session: Session, plan: Plan, runtime: Runtime, options: UpOptions, found: DryRun) -> None:
    bind = "0.0.0.0" if options.expose else "127.0.0.1"
    wanted = ["0", "0", "0"] if options.ports == "auto" else options.ports.split(",")
    record = Record(
        stack=plan.name, lab=plan.lab.folder, runtime=runtime.name, profile=plan.profile, settings=plan.settings,
        models=plan.stack.models, endpoints=Endpoints(*(f"{bind}:{port}" for port in wanted)),
        tokenizer_dir=plan.tokenizer_dir, effective=plan.effective,
    )  # fmt: skip
    launch = launch_of(session.workspace, plan, record, bind)
    found.files += _files(plan)
    found.files += [*runtime.show_files(launch), str(launch.log_file), f"{launch.run_dir}/"]
    found.commands += runtime.show_start(launch)
    found.containers += runtime.show_containers(launch)


def _files(plan: Plan) -> list[str]:
    """The rendered repository; checked as far as its templates are there."""
    waiting = plan.fetched is not None and not plan.fetched.is_dir()
    names = [f"{model}/" for model in plan.stack.models] if waiting else repository.listing(plan.request)
    return [str(plan.request.output / name) + ("/" if name.endswith("/") else "") for name in names]


def dry_run(session: Session, lab: Lab, options: UpOptions, quick: bool, only: str = "") -> DryRun:
    """What ``labctl run`` would do: each phase's stack and client, then the report."""
    assert lab.run is not None
    out = session.workspace.results_dir(lab.folder) / "TIME"
    runtime = session.likely(options.runtime, options.choices.profile)
    found = DryRun(runtime.name, options.choices.profile)
    folder = session.workspace.labs / lab.folder
    for phase in chosen_phases(lab, options.choices.profile, quick, only):
        choices = phase_choices(options.choices, phase)
        found.add(dry_up(session, lab, phase.stack, dataclasses.replace(options, choices=choices)))
        context = out / f"context-{phase.name}.json"
        found.files.append(str(context))
        found.commands += runtime.show_client(_seen(runtime, folder / phase.client, context), phase.stack)
    found.files += [str(out / name) for name in ("result.json", "report.md")]
    found.commands += runtime.show_client(_seen(runtime, folder / lab.run.report, out), "")
    return found


def _seen(runtime: Runtime, *paths: Path) -> Sequence[str]:
    return [runtime.client_path(path) for path in paths]
