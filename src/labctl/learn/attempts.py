"""The answers that an exercise has: starter, likely wrong ones, each a patch over the solution, and the solution."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from labctl.learn.exercise import Exercise

SOLUTION = "solution"
HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+\d+(?:,\d+)? @@")


@dataclass(frozen=True)
class Attempt:
    """One answer: its files' texts by name, and the sentence that it must fail with; None for a pass."""

    name: str
    files: Mapping[str, str]
    says: str | None

    def write(self, folder: Path) -> None:
        """Write the files into an existing folder."""
        for name, text in self.files.items():
            (folder / name).write_text(text, encoding="utf-8")


def exercise_attempts(exercise: Exercise) -> Iterator[Attempt]:
    """The starter, every wrong answer, and the solution. Raises ValueError: a patch does not fit the solution."""
    yield Attempt("starter", exercise.texts("starter"), exercise.manifest.says)
    solution = exercise.texts(SOLUTION)
    for name, says in exercise.manifest.wrong.items():
        path = exercise.folder / "wrong" / f"{name}.patch"
        try:
            yield Attempt(f"wrong/{name}", apply_patch(solution, path.read_text(encoding="utf-8")), says)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
    yield Attempt(SOLUTION, solution, None)


def find_attempt(exercise: Exercise, name: str) -> Attempt:
    """The answer of that name: ``starter``, ``solution`` or ``wrong/NAME``."""
    return next(attempt for attempt in exercise_attempts(exercise) if attempt.name == name)


def apply_patch(files: Mapping[str, str], patch: str) -> dict[str, str]:
    """The files with a unified diff of them (``diff -u``) applied. Raises ValueError: it does not fit, line for line.

    Each line of context must stand where the patch says: nothing is searched for or guessed.
    """
    done = dict(files)
    for part in re.split(r"^--- .*\n", patch, flags=re.MULTILINE)[1:]:
        head, _, hunks = part.partition("\n")
        name = Path(head.removeprefix("+++ ").partition("\t")[0]).name
        if name not in done:
            raise ValueError(f"there is no file {name!r}")
        done[name] = _patched(done[name], hunks)
    if done == dict(files):
        raise ValueError("it changes nothing")
    return done


def _patched(text: str, hunks: str) -> str:
    old, new, at = text.splitlines(keepends=True), [], 0
    for line in hunks.splitlines(keepends=True):
        if found := HUNK.match(line):
            start = int(found[1]) - (found[2] != "0")  # a hunk of no line names the line before it
            new += old[at:start]
            at = start
        elif line[0] == "+":
            new.append(line[1:])
        elif line[0] in " -":
            if old[at : at + 1] != [line[1:]]:
                raise ValueError(f"line {at + 1} is not {line[1:].rstrip()!r}")
            new += [line[1:]] if line[0] == " " else []
            at += 1
        elif line.startswith("\\"):  # "No newline at end of file"
            raise ValueError("every file ends with a newline")
        else:
            raise ValueError(f"this is no line of a patch: {line.rstrip()!r}")
    return "".join([*new, *old[at:]])
