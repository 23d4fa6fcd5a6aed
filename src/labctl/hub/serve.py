"""A hub that is up: everything that it needs is made first, so that a learner's first check finds it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from labctl.hub.app import Hub
from labctl.hub.codes import Codes
from labctl.hub.guess import Guess
from labctl.hub.room import Room
from labctl.learn import server
from labctl.learn.exercise import Exercise
from labctl.plan import make_plan
from labctl.runtimes.record import Choices
from labctl.runtimes.seats import Seat
from labctl.stack.session import Session
from labctl.stack.up import make_artifact
from labctl.workspace import Workspace, key_lock
from labkit import nofollow
from labkit.errors import LabError

START_S = 20.0


@dataclass(frozen=True)
class Settings:
    """``checks``: at the same time. ``apart``: a user and namespaces for each learner."""

    learners: int
    checks: int
    memory_mib: int
    idle_s: float
    apart: bool


def folder_of(workspace: Workspace) -> Path:
    """The hub's own folder. Other users can walk through it to their seats, and read nothing."""
    return workspace.state / "hub"


@contextlib.contextmanager
def sole(folder: Path) -> Iterator[None]:
    """Hold the room for the time of a block. Raises LabError: a hub is up."""
    try:
        with key_lock(folder, 0.0):
            yield
    except LabError as error:
        raise LabError("a hub is up here", error.why, "end it with Ctrl-C in its terminal") from error


def open_hub(
    session: Session, exercises: Sequence[Exercise], settings: Settings, exposed: bool, secure: bool, new_codes: bool
) -> tuple[Hub, dict[int, str]]:
    """The hub, and the codes that were made now. Raises LabError."""
    workspace, codes = session.workspace, dict[int, str]()
    folder = folder_of(workspace)
    folder.mkdir(parents=True, exist_ok=True)
    nofollow.require_own(folder, "folder")
    prepare(session, exercises)
    known = None if new_codes else Codes.read(folder / "codes.json")
    if known is None or len(known.hashes) != settings.learners + 1:
        known, codes = Codes.make(settings.learners)
        known.save(folder / "codes.json")
    seats = [
        Seat(workspace, number, settings.apart, settings.memory_mib, settings.idle_s)
        for number in range(1, settings.learners + 1)
    ]
    guess = Guess(workspace, lambda: [record for _, record in session.running()])
    return Hub(Room(exercises, seats, folder, settings.checks), known, guess, exposed, secure), codes


def prepare(session: Session, exercises: Sequence[Exercise]) -> None:
    """Make the weights and engines of all exercises in the cache that the seats share."""
    runner = session.choose("local", "cpu")
    session.carry_out([*runner.prepare("cpu")])
    made: set[Path] = set()
    for exercise in exercises:
        choices = Choices(set=exercise.manifest.settings)
        lab = server.lab_with(exercise, session.workspace)
        plan = make_plan(session.workspace, lab, server.STACK, choices, runner.server_path)
        steps = [step for step in plan.steps if not step.ready() and step.path not in made]
        session.carry_out([make_artifact(step, runner) for step in steps])
        made |= {step.path for step in steps}


@contextlib.contextmanager
def listening(hub: Hub, port: int, certificate: Path | None = None, key: Path | None = None) -> Iterator[str]:
    """Serve the hub for the time of a block; yields its address. Raises LabError: it cannot listen."""
    from labctl.pages import address

    with sole(hub.room.folder), address.listening("0.0.0.0" if hub.exposed else "127.0.0.1", port, "hub") as bound:
        bound.listen()
        config = uvicorn.Config(
            hub.app,
            log_level="error",
            access_log=False,
            timeout_graceful_shutdown=1,
            proxy_headers=False,
            server_header=False,
            ws="none",
            ssl_certfile=certificate,
            ssl_keyfile=key,
        )
        serving = uvicorn.Server(config)
        thread = threading.Thread(target=serving.run, kwargs={"sockets": [bound]}, name="hub", daemon=True)
        thread.start()
        try:
            yield f"http{'s' if certificate else ''}://127.0.0.1:{bound.getsockname()[1]}/"
        finally:
            serving.should_exit = True
            thread.join(START_S)


def wait() -> None:
    """Until Ctrl-C."""
    threading.Event().wait()
