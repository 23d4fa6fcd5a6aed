"""``engines build``, ``weights pull`` and ``render``: parts of what a server needs, and no server."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from labctl import repository, weights
from labctl.listener import Listener
from labctl.manifest.schema import Lab
from labctl.orchestrator.plan import Choices, Plan, make_plan
from labctl.orchestrator.prepare import check_machine, preparations
from labctl.orchestrator.session import Session
from labctl.orchestrator.todo import Todo
from labctl.runtimes.actions import Action, carry_out
from labctl.runtimes.base import Runtime


def build_engines(session: Session, lab: Lab, stack: str, choices: Choices, runtime: str) -> list[Path]:
    """Build the engines of a stack, and the weights that they need; the engines' folders.

    Raises:
        LabError: it has none, or one cannot be built.
    """
    runner = session.choose(runtime, choices.profile)
    plan, actions = _engines(session, lab, stack, choices, runner)
    check_machine(plan, runner, session.listener, session.workspace)
    session.say_how_long(actions, runtime, plan.profile)
    carry_out(actions, session.listener)
    return [step.path for step in plan.engines]


def dry_build(session: Session, lab: Lab, stack: str, choices: Choices, runtime: str) -> Todo:
    """What :func:`build_engines` would do. Raises LabError for what it would refuse."""
    runner = session.likely(runtime, choices.profile)
    plan, actions = _engines(session, lab, stack, choices, runner)
    return Todo(runner.name, plan.profile, list(plan.notices), actions)


def _engines(
    session: Session, lab: Lab, stack: str, choices: Choices, runner: Runtime
) -> tuple[Plan, list[Action[str]]]:
    plan = make_plan(session.workspace, lab, stack, choices, runner.server_path)
    _ = plan.engines  # refused where there are none
    return plan, preparations(plan, runner, session.workspace)


def rendering(session: Session, lab: Lab, stack: str, choices: Choices, runtime: Runtime, output: Path | None) -> Todo:
    """Only the model repository of a stack, with the paths of that runtime.

    Raises:
        LabError: it cannot be rendered.
    """
    plan = make_plan(session.workspace, lab, stack, choices, runtime.server_path, output)
    files, run_dir = plan.files(), session.workspace.run_dir(stack)
    by_hand = runtime.name == "compose" and output is None

    def do(listener: Listener) -> str:
        rendered = repository.render(plan.request)
        if by_hand:  # what compose.yaml mounts is there, and the server, nobody, can write
            session.workspace.cache.mkdir(parents=True, exist_ok=True)
            run_dir.mkdir(exist_ok=True)
            run_dir.chmod(0o1777)
        return f"{rendered.path}: {', '.join(rendered.models)}"

    if by_hand:
        files += [f"{run_dir}/", f"{session.workspace.cache}/"]
    return Todo(runtime.name, plan.profile, list(plan.notices), [Action("model repository", do, files=files)])


def pull_weights(session: Session, what: str, choices: Choices, runtime: str) -> Sequence[Path]:
    """Make the weights of a model source, or of a stack with its settings; their folders."""
    specs = [what]
    if ":" not in what and "/" not in what:
        lab, stack = session.catalog.stack(what)
        plan = make_plan(session.workspace, lab, stack, choices, str)
        specs = [step.spec for step in plan.steps if not step.build]
    runner = session.choose(runtime, choices.profile)
    carry_out(runner.prepare(choices.profile), session.listener)
    paths = []
    for spec in specs:
        source = weights.parse(spec)
        session.listener.step(f"weights {spec}")
        if weights.ready(source, session.workspace):
            session.listener.done("cached")
        else:
            runner.tool(f"weights {spec}", ("-m", "labctl.weights", "pull", spec)).do(session.listener)
            session.listener.done("made")
        paths.append(weights.locate(source, session.workspace))
    return paths
