"""What an exercise is: ``labs/NN-name/exercises/<id>-<words>/`` with its manifest, starter, solution and check."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from labctl.catalog import Catalog, core_of
from labctl.lab import Lab
from labctl.learn import growing
from labctl.litter import files_in
from labctl.stack.faults import LOOP
from labctl.texts import Replacement, parse_yaml
from labctl.workspace import Workspace
from labkit.errors import LabError

FOLDER = re.compile(r"(?P<id>\d\d[a-z])-[a-z0-9-]+")
PARTS = ("starter", "solution", "wrong", "check.py", "task.md")

Sentence = Annotated[str, Field(pattern=r"\S")]


class ExerciseManifest(BaseModel):
    """``exercise.yaml``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    title: str
    kind: Literal["implement", "complete", "fix", "configure", "predict"]
    minutes: int = Field(ge=1)
    stack: str
    # Each file that the learner may change, and its place in the model repository; "" for one that is not served.
    files: dict[str, str] = Field(min_length=1)
    settings: dict[str, Any] = {}  # settings of the stack, as --set takes them
    models: list[str] = []  # of the stack that the exercise needs; none means all of them
    replicas: int | None = Field(default=None, ge=1, le=4)  # two or more stand behind Envoy
    grows: bool = False  # its scheduler.py is my/scheduler.py, to which each such exercise adds a part
    fresh: bool = False  # each trial needs a new server, because it breaks the one that it has
    replacements: list[Replacement] = []  # literal texts of the other templates that are replaced
    hints: list[str] = Field(min_length=2)  # from a nudge to nearly the answer
    says: Sentence  # the sentence with which the starter fails
    wrong: dict[str, Sentence] = Field(min_length=2)  # a patch for each likely wrong answer, and its sentence
    stuck: str = LOOP  # what it probably means if a request is not answered
    patience: float = Field(default=10.0, gt=0)  # seconds after which a request without an answer counts as stuck

    @model_validator(mode="after")
    def _places(self) -> ExerciseManifest:
        for name, place in self.files.items():
            if Path(name).name != name or Path(place).is_absolute() or ".." in Path(place).parts:
                raise ValueError(f"files.{name}: a plain file name and a place inside the model repository, please")
        if self.grows and growing.FILE not in self.files:
            raise ValueError(f"grows: files has no {growing.FILE}")
        if taken := [edit.file for edit in self.replacements if edit.file in self.files.values()]:
            raise ValueError(f"replacements: {taken[0]} is the learner's to write")
        return self


@dataclass(frozen=True)
class Exercise:
    """One exercise of a lab. ``id`` is two digits of the lab and a letter.

    Attributes:
        home: the lab whose stack it runs on.
        core: whether it is one of the course's few; the others are more of them.
    """

    id: str
    folder: Path
    lab: Lab
    manifest: ExerciseManifest
    home: Lab
    core: bool = False

    @property
    def title(self) -> str:
        return self.manifest.title

    @property
    def served(self) -> dict[str, str]:
        """The files that Triton serves, by their place in the model repository."""
        return {place: name for name, place in self.manifest.files.items() if place}

    def texts(self, answer: str) -> dict[str, str]:
        """The files of one of the shipped answers ("starter" or "solution"), as texts by name."""
        folder = self.folder / answer
        return {name: (folder / name).read_text(encoding="utf-8") for name in self.manifest.files}

    def yours(self, workspace: Workspace) -> Path:
        """The learner's folder."""
        return workspace.root / "exercises" / self.id

    def place(self, name: str) -> str:
        """Where the learner writes a file of the exercise, below the checkout."""
        return growing.OWN if self.manifest.grows and name == growing.FILE else f"exercises/{self.id}/{name}"

    @property
    def parts(self) -> list[str]:
        """What it adds to the scheduler of the learner's own; [] where it adds nothing."""
        return [*growing.parts(self.texts("starter")[growing.FILE])] if self.manifest.grows else []


def find_exercises(
    workspace: Workspace, catalog: Catalog, leave_out: Callable[[str], None] | None = None
) -> list[Exercise]:
    """Every exercise of the checkout, in the order of the course: of each lab first the core, then the others.

    ``leave_out``: called with each problem; the exercises that have one are left out. Raises LabError: some are broken,
    and nobody leaves them out; all problems are listed.
    """
    exercises: list[Exercise] = []
    problems: list[str] = []
    core = core_of(catalog.course)
    for lab in catalog.labs:
        for path in files_in(workspace.labs / lab.folder / "exercises", "*/exercise.yaml"):
            where = path.relative_to(workspace.root).as_posix()
            try:
                exercise = _read(path, lab, catalog.labs)
                exercises.append(replace(exercise, core=exercise.id in core))
            except ValidationError as error:
                problems += [f"{where}: {'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()]
            except (yaml.YAMLError, OSError, ValueError) as error:
                problems.append(f"{where}: {' '.join(str(error).split())}")
    if len({exercise.id for exercise in exercises}) < len(exercises):
        problems.append("two exercises have the same id")
    if leave_out:
        for problem in problems:
            leave_out(problem)
    elif problems:
        raise LabError(
            "an exercise is broken", "", "correct the keys named above", details=problems, code="exercise-broken"
        )
    places = {id: place for place, id in enumerate(core)}
    labs = [lab.folder for lab in catalog.labs]
    return sorted(exercises, key=lambda e: (labs.index(e.lab.folder), places.get(e.id, len(places)), e.id))


def _read(path: Path, lab: Lab, labs: Sequence[Lab]) -> Exercise:
    """One exercise. Raises pydantic's ValidationError, YAMLError, OSError or ValueError."""
    manifest = ExerciseManifest.model_validate(parse_yaml(path.read_text(encoding="utf-8")) or {})
    match = FOLDER.fullmatch(path.parent.name)
    if match is None or not match["id"].startswith(lab.number):
        raise ValueError(f"the folder must be called {lab.number}<letter>-<words>")
    home = next((owner for owner in labs if manifest.stack in owner.stacks), None)
    if home is None:
        raise ValueError(f"stack: there is no stack {manifest.stack!r}")
    if unknown := [model for model in manifest.models if model not in home.stacks[manifest.stack].models]:
        raise ValueError(f"models: {manifest.stack} has no {unknown[0]}")
    if missing := [part for part in PARTS if not (path.parent / part).exists()]:
        raise ValueError(f"missing: {', '.join(missing)}")
    if lost := [name for name in manifest.wrong if not (path.parent / "wrong" / f"{name}.patch").is_file()]:
        raise ValueError(f"missing: wrong/{lost[0]}.patch")
    for folder in (path.parent / "starter", path.parent / "solution"):
        if lacking := [name for name in manifest.files if not (folder / name).is_file()]:
            raise ValueError(f"{folder.relative_to(path.parent)} has no {', '.join(lacking)}")
    return Exercise(match["id"], path.parent, lab, manifest, home)


def counted_exercises(exercises: Sequence[Exercise]) -> Sequence[Exercise]:
    """The exercises by which one says how far one is: the core of the course, or all where none of them is in it."""
    return [exercise for exercise in exercises if exercise.core] or exercises


def find_exercise(exercises: Sequence[Exercise], id: str) -> Exercise:
    """The exercise of that id. Raises LabError."""
    for exercise in exercises:
        if exercise.id == id.lower():
            return exercise
    known = ", ".join(exercise.id for exercise in exercises)
    raise LabError(f"there is no exercise '{id}'", f"known: {known}", "labctl exercise list", code="exercise-unknown")
