"""How far a learner is: ``.labs/exercises.json``, an entry for each exercise that was begun, and guesses."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from labctl.learn.exercise import Exercise
from labctl.workspace import Workspace, key_lock
from labkit.disk import atomic_write
from labsched.log.files import json_object

LOCK_S = 10.0
GUESSES = "guesses"  # a list, and so no entry of an exercise
NEW, STARTED, PASSED = "new", "started", "passed"


@dataclass(frozen=True)
class Entry:
    """One exercise. Times are seconds since the epoch; ``hints`` counts those that were shown."""

    state: str = NEW
    started: float = 0.0
    checks: int = 0
    hints: int = 0


class Progress:
    """Reads and writes the file. What it does not know is kept as it is; a file that cannot be read is put aside."""

    def __init__(self, workspace: Workspace) -> None:
        self._path: Path = workspace.state / "exercises.json"

    def entries(self) -> dict[str, Entry]:
        found = {id: entry_of(data) for id, data in (self._read() or {}).items()}
        return {id: entry for id, entry in found.items() if entry}

    def _read(self) -> dict[str, Any] | None:
        """The file's content: {} where there is none, None where it is damaged."""
        try:
            return json_object(self._path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError):
            return None

    def of(self, id: str) -> Entry:
        return self.entries().get(id, Entry())

    @property
    def current(self) -> str | None:
        """The id of the exercise that was started last."""
        return last_started(self.entries())

    def start(self, id: str) -> None:
        """Note that an exercise was begun, or begun again: a pass stays a pass."""

        def change(before: Entry) -> Entry:
            state = PASSED if before.state == PASSED else STARTED
            return replace(before, state=state, started=time.time())

        self._change(id, change)

    def record_check(self, id: str, passed: bool) -> None:
        """A pass stays a pass, whatever a later check says: people go on to try things out."""

        def change(before: Entry) -> Entry:
            ever = passed or before.state == PASSED
            return replace(
                before,
                state=PASSED if ever else STARTED,
                checks=before.checks + 1,
                started=before.started or time.time(),
            )

        self._change(id, change)

    def show_hint(self, id: str, of: int) -> int:
        """Show one more hint. Returns how many are shown from now on, at most ``of``."""
        shown = min(self.of(id).hints + 1, of)
        self._change(id, lambda before: replace(before, hints=shown))
        return shown

    @property
    def all_passed(self) -> set[str]:
        """The ids of the exercises that have passed."""
        return {id for id, entry in self.entries().items() if entry.state == PASSED}

    def passed(self, exercises: Iterable[Exercise]) -> int:
        """How many of these have passed."""
        passed = self.all_passed
        return sum(exercise.id in passed for exercise in exercises)

    def next_open(self, exercises: Sequence[Exercise], after: str | None = None) -> Exercise | None:
        """The exercise to do ``after`` another: the next of the course's core, or the next of the same lab after one
        that is not of the core. Where the core has passed, any that has not; None where all have.
        """
        passed = self.all_passed
        at = next((at for at, exercise in enumerate(exercises) if exercise.id == after), None)
        order = exercises if at is None else [*exercises[at + 1 :], *exercises[:at], exercises[at]]
        left = [exercise for exercise in order if exercise.id not in passed]
        aside = None if at is None or exercises[at].core else exercises[at].lab
        first = [exercise for exercise in left if exercise.core or (aside and exercise.lab.folder == aside.folder)]
        return next(iter(first or left), None)

    def to_go_on(self, exercises: Sequence[Exercise]) -> Exercise | None:
        """The exercise to go on with: the current one where it was only opened, else the next open one."""
        entries, current = self.entries(), self.current
        entry = entries[current] if current else Entry()
        opened = [e for e in exercises if e.id == current and entry.state == STARTED and not entry.checks]
        return opened[0] if opened else self.next_open(exercises, current)

    def record_guess(self, lab: str, guessed: float, measured: float | None) -> None:
        """Keep what a person guessed before a run, beside what the run measured (None: nothing)."""
        guess = {"lab": lab, "at": time.time(), "guessed": guessed, "measured": measured}

        def change(data: dict[str, Any]) -> None:
            kept = data.get(GUESSES)
            data[GUESSES] = [*(kept if isinstance(kept, list) else []), guess]

        self._rewrite(change)

    def _change(self, id: str, change: Callable[[Entry], Entry]) -> None:
        """Rewrite one entry."""

        def change_entry(data: dict[str, Any]) -> None:
            data[id] = asdict(change(entry_of(data.get(id)) or Entry()))

        self._rewrite(change_entry)

    def _rewrite(self, change: Callable[[dict[str, Any]], None]) -> None:
        """Rewrite the file. The lock is for two commands at once."""
        with key_lock(self._path, LOCK_S):
            data = self._read()
            if data is None:
                aside = self._path.with_name(f"{self._path.name}.damaged-{time.strftime('%Y%m%d-%H%M%S')}")
                self._path.rename(aside)
                data = {}
            change(data)
            atomic_write(self._path, json.dumps(dict(sorted(data.items())), indent=1))


def last_started(entries: Mapping[str, Entry]) -> str | None:
    """Return the id of the exercise that was started last."""
    started = {id: entry.started for id, entry in entries.items() if entry.started}
    return max(started, key=lambda id: started[id], default=None)


def entry_of(data: object) -> Entry | None:
    """The entry in a file, as far as its values are of the right types; None for what is none."""
    if not isinstance(data, dict):
        return None
    good: dict[str, Any] = {}
    for field in fields(Entry):
        kind = type(field.default)
        if isinstance(data.get(field.name), (int, float) if kind is float else kind):
            good[field.name] = data[field.name]
    return Entry(**good)
