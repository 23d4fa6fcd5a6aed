"""Where each learner of a room stands, read from files that the learners can write.

Nothing in them is believed: no link is followed, only plain files are read, and sizes, types and texts are limited.
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labctl.learn.exercise import Exercise, counted_exercises
from labctl.learn.progress import PASSED, STARTED, Entry, entry_of, last_started
from labctl.learn.room import HOME, LABS, Room
from labsched.log.files import json_object

MOST_BYTES, MOST_COUNTED = 256 * 1024, 9999
STATE = (LABS, ".labs")
BEGUN = "nothing written yet"  # the mistake of a learner who checks the starter


@dataclass(frozen=True)
class ClassStanding:
    """A learner: the exercises that were begun; the foreseen mistake of each that failed its last check.

    ``course``: the ids of the exercises that count.
    """

    name: str
    entries: Mapping[str, Entry]
    mistakes: Mapping[str, str]
    course: Collection[str]

    @property
    def current(self) -> str | None:
        """The exercise that was begun last."""
        return last_started(self.entries)

    @property
    def passed(self) -> str:
        """How far the learner is in the course: "3 of 15"."""
        passed = sum(entry.state == PASSED for id, entry in self.entries.items() if id in self.course)
        return f"{passed} of {len(self.course)}"


def standings(room: Room, exercises: Sequence[Exercise], now: float) -> Iterator[ClassStanding]:
    """Every learner of the room; ``now`` is seconds since the epoch.

    A file that cannot be read, or says nothing that we know, counts as none.
    """
    foreseen = {exercise.id: _foreseen(exercise) for exercise in exercises}
    course = [exercise.id for exercise in counted_exercises(exercises)]
    for name in room.names():
        state = (HOME, name, *STATE)
        data = read_beneath(room.path, (*state, "exercises.json"))
        written = {id: entry_of(data[id]) for id in foreseen if id in data}
        entries = {id: _plausible(entry, now) for id, entry in written.items() if entry}
        mistakes = {}
        for id, entry in entries.items():
            if entry.state == PASSED:
                continue
            sentence = read_beneath(room.path, (*state, "checks", f"{id}.json")).get("sentence")
            if isinstance(sentence, str) and sentence in foreseen[id]:
                mistakes[id] = foreseen[id][sentence]
        yield ClassStanding(name, entries, mistakes, course)


def _plausible(entry: Entry, now: float) -> Entry:
    """An entry as Progress writes it, whatever a learner has written in its place."""
    started = entry.started if 0 <= entry.started <= now else 0.0
    checks, hints = (min(max(count, 0), MOST_COUNTED) for count in (entry.checks, entry.hints))
    state = PASSED if entry.state == PASSED else STARTED
    return Entry(state, started, checks, hints)


def commonest(mistakes: Collection[str]) -> str:
    """The mistake that most learners make, and how many do; "" without a mistake."""
    return "".join(f"{name} ({count})" for name, count in Counter(mistakes).most_common(1))


def _foreseen(exercise: Exercise) -> dict[str, str]:
    """The name of each mistake that the exercise's author foresaw, by the sentence that it fails with."""
    wrong = {says: name.replace("_", " ") for name, says in exercise.manifest.wrong.items()}
    return {exercise.manifest.says: BEGUN, **wrong}


def read_beneath(root: Path, parts: Sequence[str]) -> dict[str, Any]:
    """The JSON object in a file beneath a folder; {} where there is no such file, or anything else."""
    *folders, name = parts
    handles = [os.open(root, os.O_RDONLY | os.O_DIRECTORY)]
    try:
        for folder in folders:
            handles.append(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=handles[-1]))
        handles.append(os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=handles[-1]))
        if not stat.S_ISREG(os.fstat(handles[-1]).st_mode):
            return {}
        data = os.read(handles[-1], MOST_BYTES + 1)
        return json_object(data) if len(data) <= MOST_BYTES else {}
    except (OSError, ValueError):
        return {}
    finally:
        for handle in handles:
            os.close(handle)
