"""The course: the order of the labs and the exercises of its core, from ``labs/course.yaml``."""

from __future__ import annotations

from collections.abc import Container, Sequence
from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict, TypeAdapter

from labctl.texts import parse_yaml

FILE = "course.yaml"
END = "the course has passed: its exam is labctl learn ladder, its last page docs/learn/real-text.md"


class LabInCourse(BaseModel):
    """A lab in the course. ``answers``: the question that one can answer after it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    lab: str
    core: list[str]
    answers: str


Course = Sequence[LabInCourse]


def read_course(labs: Path) -> Course:
    """Read the course of a checkout; a checkout without the file has its labs by number. Raises ValueError."""
    path = labs / FILE
    if not path.is_file():
        return ()
    try:
        return TypeAdapter(list[LabInCourse]).validate_python(parse_yaml(path.read_text(encoding="utf-8")))
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from error


def place_of_lab(course: Course, number: str) -> tuple[int, str]:
    """Where a lab stands; one that the course does not name comes after those, by number."""
    return next((place for place, part in enumerate(course) if part.lab == number), len(course)), number


def core_of(course: Course) -> list[str]:
    """The ids of the core's exercises, in order."""
    return [id for part in course for id in part.core]


def told_after(course: Course, id: str, passed: Container[str]) -> list[str]:
    """Say what one can answer where an exercise was the last of its lab's core, and where the course ends."""
    part = next((part for part in course if id in part.core), None)
    told = [f"you can now answer: {part.answers}"] if part and all(each in passed for each in part.core) else []
    if told and all(each in passed for each in core_of(course)):
        told.append(END)
    return told
