"""The one screen of ``labctl learn``: the task, the last check, and keys; a saved file is checked at once."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import sys
import termios
import textwrap
import threading
import tty
from collections.abc import Iterator, Sequence

import click

from labctl.errors import LabError
from labctl.learn import desk, judge
from labctl.learn.exercise import Exercise
from labctl.learn.progress import PASSED, Progress
from labctl.listener import Silent
from labctl.orchestrator.session import Session

KEYS = "c check   h hint   n next   r reset   s solution   q quit"
HOME, CLEAR_LINE, CLEAR_REST = "\033[H", "\033[K", "\033[J"
OWN_SCREEN, BACK = "\033[?1049h\033[?25l", "\033[?25h\033[?1049l"
TICK_S = 0.2


class Screen:
    """Draws, listens to keys and to saved files; checks run in a thread, so that keys are always heard."""

    def __init__(self, session: Session, exercises: Sequence[Exercise], progress: Progress, runtime: str) -> None:
        self.session = Session(session.workspace, session.catalog, Silent())
        self.exercises, self.progress, self.runtime = exercises, progress, runtime
        known = {exercise.id for exercise in exercises}
        current = progress.current if progress.current in known else ""
        self.exercise = next((e for e in exercises if e.id == current), None) or self._next()
        self.below: list[str] = []
        self.stamps: list[int] = []
        self.checking: threading.Thread | None = None

    def run(self) -> None:
        """Until q or Ctrl-C; the exercise server stays for its idle time."""
        self._begin(self.exercise)
        with _raw():
            while (key := self._key()) != "q":
                self._act(key)
                if self._saved():
                    self._check()
                self._draw()
        if self.checking:
            self.checking.join()
        click.echo("the exercise server stays up for half an hour: labctl exercise stop")

    # -- acting ----------------------------------------------------------------------------------------------------

    def _act(self, key: str) -> None:
        exercise = self.exercise
        if self.checking and self.checking.is_alive():
            return
        match key:
            case "c":
                self._check()
            case "h":
                hints = exercise.manifest.hints
                shown = min(self.progress.of(exercise.id).hints + 1, len(hints))
                self.progress.hinted(exercise.id, shown)
                self.below = [f"hint {n} of {len(hints)}: {hint}" for n, hint in enumerate(hints[:shown], 1)]
            case "n":
                self._begin(self._next(exercise))
            case "r":
                kept = desk.reset(exercise, self.session.workspace)
                self.below = [f"the starter is back; yours is in exercises/{kept.name}" if kept else "the starter"]
                self.stamps = self._now()
            case "s" if self.progress.of(exercise.id).state == PASSED:
                self.below = [line for text in desk.solution(exercise).values() for line in text.splitlines()]
            case "s":
                self.below = [f"after it has passed; or: labctl exercise solution {exercise.id} --give-up"]

    def _begin(self, exercise: Exercise) -> None:
        desk.lay_out(exercise, self.session.workspace)
        self.progress.start(exercise.id)
        self.exercise, self.below, self.stamps = exercise, [], []
        self.stamps = self._now()

    def _next(self, after: Exercise | None = None) -> Exercise:
        order = list(self.exercises)
        if after:
            place = order.index(after) + 1
            order = order[place:] + order[:place]
        return next((e for e in order if self.progress.of(e.id).state != PASSED), order[0])

    def _check(self) -> None:
        self.stamps = self._now()
        self.below = ["checking ..."]

        def work() -> None:
            try:
                outcome = judge.check(self.session, self.exercise, self.runtime)
            except LabError as error:
                self.below = [str(error)]
                return
            rows = [f"{'ok' if c.ok else 'NO'}  {c.name}: expected {c.expected}, measured {c.measured}"
                    for c in outcome.checks]  # fmt: skip
            self.below = [*rows, "", f"{'passed' if outcome.passed else 'not yet'}: {outcome.sentence}"]

        self.checking = threading.Thread(target=work, name="check", daemon=True)
        self.checking.start()

    # -- listening -------------------------------------------------------------------------------------------------

    def _saved(self) -> bool:
        busy = self.checking is not None and self.checking.is_alive()
        return not busy and self._now() != self.stamps

    def _now(self) -> list[int]:
        paths = [self.exercise.yours(self.session.workspace) / name for name in self.exercise.manifest.files]
        return [path.stat().st_mtime_ns if path.exists() else 0 for path in paths]

    def _key(self) -> str:
        if select.select([sys.stdin], [], [], TICK_S)[0]:
            return os.read(sys.stdin.fileno(), 1).decode(errors="replace").lower() or "q"
        return ""

    # -- drawing ---------------------------------------------------------------------------------------------------

    def _draw(self) -> None:
        width, height = shutil.get_terminal_size()
        lines = self._lines(width)
        keys = KEYS[:width]
        shown = [*lines[: height - 2], *[""] * max(0, height - 2 - len(lines)), "", keys]
        sys.stdout.write(HOME + "".join(f"{line[:width]}{CLEAR_LINE}\r\n" for line in shown[:-1]) + keys + CLEAR_REST)
        sys.stdout.flush()

    def _lines(self, width: int) -> list[str]:
        exercise, folder = self.exercise, f"exercises/{self.exercise.id}"
        passed = sum(self.progress.of(e.id).state == PASSED for e in self.exercises)
        state = self.progress.of(exercise.id).state
        head = f"{exercise.id}  {exercise.title}  [{state}]"
        task = (exercise.folder / desk.TASK).read_text(encoding="utf-8").strip().splitlines()
        files = "edit: " + ", ".join(f"{folder}/{name}" for name in exercise.manifest.files)
        return [
            f"{head}{f'{passed} of {len(self.exercises)} passed':>{max(1, width - len(head))}}", "",
            *(part for line in task for part in textwrap.wrap(line, width - 1) or [""]), "", files, "",
            *(part for line in self.below for part in textwrap.wrap(line, width - 1, subsequent_indent="    ") or [""]),
        ]  # fmt: skip


@contextlib.contextmanager
def _raw() -> Iterator[None]:
    """Single keys, a screen of our own; as it was afterwards, however the block ends."""
    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        sys.stdout.write(OWN_SCREEN)
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
        sys.stdout.write(BACK)
        sys.stdout.flush()
