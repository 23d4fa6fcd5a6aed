"""The one screen of ``labctl learn``: the task, the last check, and keys; a saved file is checked at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

import click

from labctl.cli import fullscreen, learn_view
from labctl.learn import desk, judge, server
from labctl.learn.exercise import Exercise
from labctl.learn.progress import PASSED, Progress
from labctl.listener import Silent
from labctl.stack.session import Session
from labkit.errors import LabError

TICK_S = 0.2


class _Telling(Silent):
    """Shows only what is being waited for."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell

    def step(self, text: str) -> None:
        self._tell(text)


class LearnScreen:
    """Draws, listens to keys and to saved files; checks run in a thread, so that keys are always heard."""

    def __init__(self, session: Session, exercises: Sequence[Exercise], progress: Progress, runtime: str) -> None:
        self.session = Session(session.workspace, session.catalog, _Telling(self._waiting))
        self.exercises, self.progress, self.runtime = exercises, progress, runtime
        self.exercise = next((e for e in exercises if e.id == progress.current), None) or self._next()
        self.below: list[str] = []
        self.found: list[str] = []
        self.page, self.alone = 0, False
        self.stamps: list[int] = []
        self.checking: threading.Thread | None = None
        self.began, self.waits_for = 0.0, ""

    def run(self) -> None:
        """Until q or Ctrl-C; the exercise server stays."""
        self._begin(self.exercise)
        with fullscreen.fullscreen() as draw:
            while (key := fullscreen.read_key(TICK_S)) != "q":
                self._act(key)
                if not self._busy() and self._stamps() != self.stamps:
                    self._check()
                draw(lambda width, height: learn_view.view_lines(self._view(), width, height))
        if self._busy():
            click.echo("a check is still in progress: its end is waited for")
            assert self.checking
            self.checking.join()
        if self.session.may_run(server.STACK):
            click.echo("the exercise server is still up; to stop it: labctl exercise stop")

    # -- acting ----------------------------------------------------------------------------------------------------

    def _act(self, key: str) -> None:
        exercise = self.exercise
        if key == " ":
            self.page += 1
        if self._busy():
            return
        match key:
            case "c":
                self._check()
            case "h":
                hints = exercise.manifest.hints
                shown = self.progress.show_hint(exercise.id, len(hints))
                lines = [f"hint {n} of {len(hints)}: {hint}" for n, hint in enumerate(hints[:shown], 1)]
                self._show([*lines[::-1], "", *self.found])  # the newest first; what was found stays
            case "n":
                self._begin(self._next(exercise.id))
                if self._count_passed() == len(self.exercises):
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
        self.exercise = exercise
        self._show(self._rows_of(judge.last_outcome(self.session.workspace, exercise.id)))
        self.stamps = self._stamps()

    def _next(self, after: str = "") -> Exercise:
        """The first exercise that has not passed; where all have, the one ``after`` another."""
        order = [exercise.id for exercise in self.exercises]
        place = order.index(after) + 1 if after else 0
        id = self.progress.first_open(order, after) or order[place % len(order)]
        return next(exercise for exercise in self.exercises if exercise.id == id)

    def _count_passed(self) -> int:
        return sum(self.progress.of(e.id).state == PASSED for e in self.exercises)

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
        self.found = ["not checked yet: c checks it, and so does saving a file"]
        if outcome:
            then = ["", "n is the next exercise, s shows the solution"] if outcome.passed else []
            self.found = [outcome.verdict, *then, "", *outcome.rows()]
        return self.found

    def _stamps(self) -> list[int]:
        return desk.stamps(self.exercise, self.session.workspace)

    # -- drawing ---------------------------------------------------------------------------------------------------

    def _view(self) -> learn_view.View:
        exercise, folder = self.exercise, f"exercises/{self.exercise.id}"
        files = ", ".join(f"{folder}/{name}" for name in exercise.manifest.files)
        served = any(place.endswith(".py") for place in exercise.served)  # it runs in the server, which has a log
        prints = " What it prints: labctl logs exercise" if served else ""
        checking = [f"checking, {time.monotonic() - self.began:.0f} s{self.waits_for}"]
        return learn_view.View(
            f"{exercise.id}  {exercise.title}",
            self.progress.of(exercise.id).state,
            f"{self._count_passed()} of {len(self.exercises)} passed",
            "" if self.alone else (exercise.folder / desk.TASK).read_text(encoding="utf-8"),
            f"Edit {files}, and save.{prints}",
            f"{folder}/{desk.TASK}",
            checking if self._busy() else self.below,
            self.page,
        )
