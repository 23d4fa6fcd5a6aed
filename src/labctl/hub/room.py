"""The room: its exercises, its learners, and what the judge said of each one's files."""

from __future__ import annotations

import collections
import contextlib
import json
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from labctl.hub import seat as side
from labctl.hub.checks import Check, Checks
from labctl.learn import desk
from labctl.learn.exercise import Exercise
from labctl.learn.progress import NEW, PASSED, STARTED
from labctl.runtimes.seats import Seat
from labkit import nofollow
from labkit.disk import atomic_write
from labkit.errors import LabError

CHECK_S, STOP_S = 900.0, 60.0
MOST_SENTENCE, MOST_ROWS, COMMON = 1000, 40, 10
LOST = "the check gave no verdict: does your code end its own process, or fill the memory?"


@dataclass(frozen=True)
class Verdict:
    """What the judge said of a learner's files. ``failure``: it could not judge, and it is not the learner's fault."""

    exercise: str
    passed: bool
    sentence: str
    rows: Sequence[str] = ()
    failure: bool = False
    waited_s: float = 0.0
    at: float = field(default_factory=time.time)  # seconds since the epoch


@dataclass
class Desk:
    """What the hub keeps of one learner: the last files and verdict of each exercise, and where they are."""

    current: str = ""
    files: dict[str, dict[str, str]] = field(default_factory=dict)
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    passed: list[str] = field(default_factory=list)
    hints: dict[str, int] = field(default_factory=dict)
    wrong: list[tuple[str, str]] = field(default_factory=list)  # exercise and sentence of each answer that failed

    def state(self, exercise: str) -> str:
        begun = exercise in self.files or exercise == self.current
        return PASSED if exercise in self.passed else STARTED if begun else NEW


class Room:
    """All of it. ``folder`` is the hub's own; ``at_once``: checks that run side by side."""

    def __init__(self, exercises: Sequence[Exercise], seats: Sequence[Seat], folder: Path, at_once: int) -> None:
        self.exercises = {exercise.id: exercise for exercise in exercises}
        self.seats = {seat.number: seat for seat in seats}
        self.folder, self._lock = folder, threading.Lock()
        for name in ("learners", "report"):
            (folder / name).mkdir(mode=0o700, parents=True, exist_ok=True)
        self.desks = {number: self._read(number) for number in self.seats}
        self.checks = Checks(self._judge, at_once)

    def exercise(self, id: str) -> Exercise:
        """Raises LabError."""
        if id not in self.exercises:
            raise LabError("there is no such exercise in this room")
        return self.exercises[id]

    def open(self, learner: int, id: str) -> dict[str, str]:
        """The learner's files of an exercise, or its starter. Raises LabError."""
        exercise, own = self.exercise(id), self.desks[learner]
        own.current = id
        starter = exercise.folder / "starter"
        return own.files.get(id) or {
            name: (starter / name).read_text(encoding="utf-8") for name in exercise.manifest.files
        }

    def ask(self, learner: int, id: str, files: Mapping[str, str]) -> None:
        """Have the judge look at these files. Raises LabError: a file is missing, or a check is not over."""
        exercise = self.exercise(id)
        if files.keys() != exercise.manifest.files.keys():
            raise LabError("the check needs every file of the exercise", ", ".join(exercise.manifest.files))
        self.checks.ask(Check(learner, id, dict(files)))
        own = self.desks[learner]
        own.current, own.files[id] = id, dict(files)
        self._write(learner)

    def hint(self, learner: int, id: str) -> None:
        """Show one hint more."""
        own, hints = self.desks[learner], self.exercise(id).manifest.hints
        own.hints[id] = min(own.hints.get(id, 0) + 1, len(hints))
        self._write(learner)

    def reset(self, learner: int, id: str) -> None:
        """The starter again."""
        self.desks[learner].files.pop(self.exercise(id).id, None)
        self._write(learner)

    def _judge(self, check: Check, waited_s: float) -> None:
        """Run a check in its learner's seat; its verdict is kept, whatever happens."""
        try:
            verdict = _verdict(check, self.call(check.learner, check_call(check), CHECK_S), waited_s)
        except LabError as error:
            verdict = Verdict(check.exercise, False, f"{error.what}: {error.why}", failure=True, waited_s=waited_s)
        except Exception as error:
            verdict = Verdict(check.exercise, False, f"{LOST} ({type(error).__name__})", waited_s=waited_s)
        with self._lock:
            own = self.desks[check.learner]
            own.verdicts[check.exercise] = verdict
            if verdict.passed and check.exercise not in own.passed:
                own.passed.append(check.exercise)
            if not verdict.passed and not verdict.failure:
                own.wrong.append((check.exercise, verdict.sentence))
        self._write(check.learner)

    def call(self, learner: int, call: Mapping[str, Any], seconds: float) -> Mapping[str, Any] | None:
        """What the seat answers; None: nothing that can be read, or too late. Raises LabError: its own words."""
        seat = self.seats[learner]
        seat.prepare()
        out = seat.run([side.MODULE], json.dumps(call) + "\n", seconds)
        try:
            answer = nofollow.json_object((out or "").strip().rpartition("\n")[2])
        except ValueError:
            return None
        if "error" in answer:
            what, why = (str(word)[:MOST_SENTENCE] for word in answer["error"])
            raise LabError(what, why)
        return answer

    # -- the class -------------------------------------------------------------------------------------------------

    def common(self) -> list[tuple[str, str, int]]:
        """Exercise, sentence and learners of the answers that fail most often; each learner counts once."""
        pairs = [pair for own in self.desks.values() for pair in set(own.wrong)]
        counted = collections.Counter(pairs).most_common(COMMON)
        return [(exercise, sentence, count) for (exercise, sentence), count in counted]

    def close(self) -> None:
        """End every server and process of the room."""
        self.checks.close()
        for number, seat in self.seats.items():
            if not seat.apart and seat.used:
                with contextlib.suppress(LabError):  # its idle watcher ends it later
                    self.call(number, {"do": "stop"}, STOP_S)
            seat.close()

    def _path(self, learner: int) -> Path:
        return self.folder / "learners" / f"learner-{learner:02d}.json"

    def _read(self, learner: int) -> Desk:
        try:
            data = nofollow.read_object(self._path(learner))
            verdicts = {id: Verdict(**verdict) for id, verdict in data.pop("verdicts").items()}
            wrong = [(id, sentence) for id, sentence in data.pop("wrong")]
            return Desk(**data, verdicts=verdicts, wrong=wrong)
        except (OSError, ValueError, TypeError, LookupError, AttributeError):
            return Desk()

    def _write(self, learner: int) -> None:
        """Keep the desk, and what ``labctl workshop report`` reads of it."""
        with self._lock:
            own = self.desks[learner]
            atomic_write(self._path(learner), json.dumps(asdict(own)), mode=0o600)
            rows = [{"id": id, "state": own.state(id)} for id in self.exercises]
            report = self.folder / "report" / f"learner-{learner:02d}.json"
            atomic_write(report, json.dumps(rows), mode=0o600)


def check_call(check: Check) -> dict[str, Any]:
    return {"do": "check", "exercise": check.exercise, "files": dict(check.files)}


def _verdict(check: Check, answer: Mapping[str, Any] | None, waited_s: float) -> Verdict:
    """What a seat said, cut to what a verdict can be: its learner's code may have written it."""
    if answer is None or not isinstance(answer.get("sentence"), str) or not isinstance(answer.get("rows"), list):
        return Verdict(check.exercise, False, LOST, waited_s=waited_s)
    rows = [str(row)[:MOST_SENTENCE] for row in answer["rows"][:MOST_ROWS]]
    sentence = answer["sentence"][:MOST_SENTENCE]
    return Verdict(check.exercise, answer.get("passed") is True, sentence, rows, waited_s=waited_s)


def task_of(exercise: Exercise) -> str:
    """The task, as Markdown."""
    return (exercise.folder / desk.TASK).read_text(encoding="utf-8")
