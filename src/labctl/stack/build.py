"""What must be there before a server can start: images, templates, weights, engines; each made once, in order."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from labctl import repository
from labctl.artifacts import weights
from labctl.artifacts.engines import Build
from labctl.manifest.schema import Lab
from labctl.options import Options
from labctl.plan import make_plan
from labctl.runtimes import compose_commands, images
from labctl.runtimes.base import Runtime
from labctl.runtimes.compose import ComposeRuntime
from labctl.runtimes.compose_commands import Projects
from labctl.runtimes.lock import stack_lock
from labctl.stack.session import Session
from labctl.stack.stack import Stack, named_endpoints
from labctl.stack.up import (
    check_machine,
    make_artifact,
    preparation_minutes,
    prepare_artifacts,
    record_of,
    refuse_unservable,
)
from labkit.errors import LabError


def build_engines(session: Session, lab: Lab, stack: str, options: Options, runtime: str) -> list[Path]:
    """Build the engines of a stack, and the weights that they need; the engines' folders.

    Raises LabError: it has none, or one cannot be built.
    """
    runner = session.choose(runtime, options.profile)
    plan = make_plan(session.workspace, lab, stack, options, runner.server_path)
    if not (built := [artifact for artifact in plan.artifacts if isinstance(artifact, Build)]):
        raise LabError(f"stack {stack} has no engine", "its models are served from their weights", code="engine-none")
    refuse_unservable(plan, runner, session.workspace)
    check_machine(session, plan, runner)
    session.say_how_long(preparation_minutes(plan, runner))
    prepare_artifacts(session, plan, runner)
    return [build.locate(session.workspace) for build in built]


def build_images(session: Session, lab: Lab, stack: str, options: Options) -> list[str]:
    """Build the images of a stack that are missing; the names of all of them.

    Raises LabError: the stack cannot have these options, or an image cannot be built.
    """
    plan = make_plan(session.workspace, lab, stack, options, session.runtime("compose").server_path)
    builds = compose_commands.builds(Projects(session.workspace), plan.profile, plan.image, plan.stack.packages)
    for notice in plan.notices:
        session.listener.note(notice)
    images.build_missing_images(session.listener, builds, plan.image)
    return list(builds)


def render_stack(
    session: Session, lab: Lab, stack: str, options: Options, runtime: Runtime, output: Path | None
) -> str:
    """Only the model repository of a stack, with the paths of that runtime; what was rendered, in words.

    In its own place for containers, also what else ``docker compose --env-file`` needs to serve it by hand.

    Raises:
        LabError: it cannot be rendered, the folder is somebody else's, or the server of a stack that is up reads it.
    """
    plan = make_plan(session.workspace, lab, stack, options, runtime.server_path, output)
    folder, own, listener = plan.request.output, session.workspace.folder(stack), session.listener
    if output and folder.is_dir() and not all((path / repository.CONFIG).is_file() for path in folder.iterdir()):
        raise LabError(
            f"{folder} is not empty",
            "labctl has not rendered what is in it",
            "name another --output",
            code="output-not-empty",
        )
    by_hand = runtime if isinstance(runtime, ComposeRuntime) and output is None else None
    for notice in plan.notices:
        listener.note(notice)
    with _require_unserved(session, folder):
        models = repository.render_repository(plan.request)
        if by_hand:
            planned = Stack(session, lab, stack, by_hand, options)
            endpoints = named_endpoints(planned.options.ports)
            assert endpoints
            by_hand.write_files(planned.plan, record_of(planned, endpoints))
            listener.note(f"by hand: docker compose --env-file {own.env_file} up --wait")
    return f"{folder}: {', '.join(models)}"


@contextlib.contextmanager
def _require_unserved(session: Session, folder: Path) -> Iterator[None]:
    """For the time of a block no server reads that folder, and none comes up on it.

    Raises LabError: the stack whose folder it is is up, or another command changes it.
    """
    stack = folder.resolve().parent.name
    if folder.resolve() != session.workspace.folder(stack).repository.resolve():
        yield
        return
    with stack_lock(session.workspace, stack, "render"):
        if session.find(stack):
            raise LabError(
                f"{stack} is up, and its server reads {folder}",
                "its next start would serve what is rendered now, with settings that no command knows of",
                f"name another --output, or labctl down {stack}",
                code="output-served",
            )
        yield


def pull_weights(session: Session, what: str, options: Options, runtime: str) -> Sequence[Path]:
    """Make the weights of a model source, or of a stack with its settings; their folders."""
    if ":" in what or "/" in what:
        sources = [weights.parse_source(what)]
    else:
        lab, stack = session.catalog.stack(what)
        plan = make_plan(session.workspace, lab, stack, options, str)
        sources = [artifact for artifact in plan.artifacts if isinstance(artifact, weights.Source)]
    runner = session.choose(runtime, options.profile)
    runner.prepare(session.listener, options.profile)
    for source in sources:
        make_artifact(session, source, runner)
    return [source.locate(session.workspace) for source in sources]
