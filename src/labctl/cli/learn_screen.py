"""The one screen of ``labctl learn``: the task, the last check, and keys; a saved file is checked at once."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import termios
import textwrap
import threading
import time
import tty
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import click

from labctl.catalog import told_after
from labctl.cli import learn_view
from labctl.learn import desk, judge, server
from labctl.learn.exercise import Exercise, counted_exercises
from labctl.learn.progress import PASSED, Progress
from labctl.listener import Silent
from labctl.stack.session import Session
from labkit.errors import LabError

if TYPE_CHECKING:
    from rich.text import Text

TICK_S = 0.2
TITLE = 40  # columns


class _Telling(Silent):
    """Shows only what is being waited for."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell

    def step(self, text: str) -> None:
        self._tell(text)


class LearnScreen:
    """Draws, listens to keys and to saved files; checks run in a thread, so that keys are always heard."""

    def __init__(
        self, session: Session, exercises: Sequence[Exercise], progress: Progress, runtime: str | None
    ) -> None:
        self.session = Session(session.workspace, session.catalog, _Telling(self._waiting))
        self.exercises, self.progress, self.runtime = exercises, progress, runtime
        self.counted = counted_exercises(exercises)
        self.exercise = next((e for e in exercises if e.id == progress.current), None) or self._next()
        self.below: list[str] = []
        self.found: list[str] = []
        self.page, self.alone, self.top = 0, False, 0
        self.chosen: int | None = None  # in the list of the exercises, while that is shown
        self.stamps: list[int] = []
        self.checking: threading.Thread | None = None
        self.began, self.waits_for = 0.0, ""

    def run(self) -> None:
        """Until q or Ctrl-C; the exercise server stays."""
        self._begin(self.exercise)
        with fullscreen() as draw:
            while (key := read_key(TICK_S)) != "q":
                self._act(key)
                if not self._busy() and self._stamps() != self.stamps:
                    self._check()
                draw(self._lines)
        if self._busy():
            click.echo("a check is still in progress: its end is waited for")
            assert self.checking
            self.checking.join()
        if self.session.may_run(server.STACK):
            click.echo("the exercise server is still up; to stop it: labctl exercise stop")

    # -- acting ----------------------------------------------------------------------------------------------------

    def _act(self, key: str) -> None:
        exercise = self.exercise
        if self.chosen is not None:
            self._choose(key, self.chosen)
            return
        match key:
            case " ":
                self.page += 1
            case "up" | "down":
                self.top = max(0, self.top + (1 if key == "down" else -1))
        if self._busy():
            return
        match key:
            case "l":
                self.chosen = self.exercises.index(exercise) if exercise in self.exercises else 0
            case "c":
                self._check()
            case "h":
                hints = exercise.manifest.hints
                shown = self.progress.show_hint(exercise.id, len(hints))
                lines = [f"hint {n} of {len(hints)}: {hint}" for n, hint in enumerate(hints[:shown], 1)]
                self._show([*lines[::-1], "", *self.found])  # the newest first; what was found stays
            case "n":
                self._begin(self._next(exercise.id))
                if self.progress.passed(self.exercises) == len(self.exercises):
                    self._show(["all of these have passed: labctl exercise list has the others", *self.below])
            case "r":
                kept = desk.reset(exercise, self.session.workspace)
                self._show([f"the starter is back; yours is in exercises/{kept.name}" if kept else "the starter"])
                self.stamps = self._stamps()
            case "s" if self.progress.of(exercise.id).state == PASSED:
                lines = [line for text in exercise.texts("solution").values() for line in text.splitlines()]
                self._show(lines, alone=True)
            case "s":
                self._show([f"it is shown after it has passed; or: labctl exercise solution {exercise.id} --give-up"])

    def _begin(self, exercise: Exercise) -> None:
        desk.lay_out_exercise(exercise, self.session.workspace)
        self.progress.start(exercise.id)
        self.exercise, self.top = exercise, 0
        self._show(self._rows_of(judge.last_outcome(self.session.workspace, exercise.id)))
        self.stamps = self._stamps()

    def _choose(self, key: str, chosen: int) -> None:
        """A key in the list: move in it, begin the chosen one, or go back."""
        match key:
            case "up" | "k" | "down" | "j":
                step = -1 if key in ("up", "k") else 1
                self.chosen = min(max(0, chosen + step), len(self.exercises) - 1)
            case "\n" | "\r":
                self.chosen = None
                self._begin(self.exercises[chosen])
            case "l" | "\033":
                self.chosen = None

    def _next(self, after: str | None = None) -> Exercise:
        """The next exercise that has not passed; where all have, the one ``after`` another."""
        order = [exercise.id for exercise in self.exercises]
        place = order.index(after) + 1 if after in order else 0
        return self.progress.next_open(self.exercises, after) or self.exercises[place % len(order)]

    def _check(self) -> None:
        self.stamps = self._stamps()
        self.began, self.waits_for = time.monotonic(), ""

        def work() -> None:
            try:
                outcome = judge.check_exercise(self.session, self.exercise, self.runtime)
            except LabError as error:
                self._show(str(error).splitlines())
                return
            except Exception as error:  # nobody else would hear of it
                self._show([f"labctl itself failed: {type(error).__name__}: {error}"])
                return
            self._show(self._rows_of(outcome))

        self.checking = threading.Thread(target=work, name="check", daemon=True)
        self.checking.start()

    def _busy(self) -> bool:
        return self.checking is not None and self.checking.is_alive()

    def _waiting(self, text: str) -> None:
        self.waits_for = f": {text} ..."

    def _show(self, below: list[str], alone: bool = False) -> None:
        self.below, self.page, self.alone = below, 0, alone

    def _rows_of(self, outcome: judge.Outcome | None) -> list[str]:
        """The rows of a check, which stay on the screen beside a hint; its verdict first, which must be seen."""
        self.found = []
        if outcome:
            then = ["", *self._after_a_pass()] if outcome.passed else []
            self.found = [outcome.verdict, *then, "", *outcome.rows()]
        return self.found

    def _after_a_pass(self) -> list[str]:
        """What one can do, and now answer."""
        told = told_after(self.session.catalog.course, self.exercise.id, self.progress.all_passed)
        return [*told, "n is the next exercise, s shows the solution"]

    def _stamps(self) -> list[int]:
        return desk.stamps(self.exercise, self.session.workspace)

    # -- drawing ---------------------------------------------------------------------------------------------------

    def _lines(self, width: int, height: int) -> list[Text]:
        view = self._view()
        self.top = min(self.top, learn_view.lines_hidden(view, width, height))
        return learn_view.view_lines(view, width, height)

    def _view(self) -> learn_view.View:
        counted = f"{self.progress.passed(self.counted)} of {len(self.counted)} passed"
        if self.chosen is not None:
            return learn_view.View("The exercises", "", counted, "", "", "", self._list(), chosen=self.chosen)
        exercise, folder = self.exercise, f"exercises/{self.exercise.id}"
        files = ", ".join(map(exercise.place, exercise.manifest.files))
        served = any(place.endswith(".py") for place in exercise.served)  # it runs in the server, which has a log
        prints = " Its output: labctl logs exercise" if served else ""
        checking = [f"checking, {time.monotonic() - self.began:.0f} s{self.waits_for}"]
        return learn_view.View(
            f"{exercise.id}  {exercise.title}",
            self.progress.of(exercise.id).state,
            counted,
            "" if self.alone else (exercise.folder / desk.TASK).read_text(encoding="utf-8"),
            f"Edit {files}; saving checks it.{prints}",
            f"{folder}/{desk.TASK}",
            checking if self._busy() else self.below,
            self.page,
            self.top,
        )

    def _list(self) -> list[str]:
        """A row for each exercise: its number in the course, or "more"."""
        entries, place, rows = self.progress.entries(), 0, []
        for at, exercise in enumerate(self.exercises):
            place += exercise.core
            mark = learn_view.HERE if at == self.chosen else "  "
            state = entries[exercise.id].state if exercise.id in entries else ""
            number = f"{place:>4}" if exercise.core else "more"
            title = textwrap.shorten(exercise.title, TITLE)
            rows.append(f"{mark}{number}  {exercise.id}  {title:<{TITLE}} {exercise.manifest.minutes:>3} min  {state}")
        return rows


ARROWS = {b"\033[A": "up", b"\033[B": "down", b"\033OA": "up", b"\033OB": "down"}  # also of an application's keypad
Lines = Callable[[int, int], "Sequence[str | Text]"]  # of a width and a height; each line must fit


@contextlib.contextmanager
def fullscreen() -> Iterator[Callable[[Lines], None]]:
    """A screen and single keys for the time of a block; yields what draws. The terminal is as it was afterwards."""
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    console, before = Console(), termios.tcgetattr(sys.stdin)
    live = Live(console=console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)

    def draw(lines: Lines) -> None:
        shown = [Text(line) if isinstance(line, str) else line for line in lines(*console.size)]
        live.update(Group(*shown), refresh=True)

    try:
        tty.setcbreak(sys.stdin)
        with live:
            yield draw
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def read_key(seconds: float) -> str:
    """The key that is pressed within that time, in lower case, "up" or "down"; "q" where the terminal has gone.

    "" for none, and for what else sends more than a letter (a paste).
    """
    if not select.select([sys.stdin], [], [], seconds)[0]:
        return ""
    data = os.read(sys.stdin.fileno(), 64)
    if data in ARROWS:
        return ARROWS[data]
    return "" if data.startswith(b"\033") or len(data) > 1 else data.decode(errors="replace").lower() or "q"
