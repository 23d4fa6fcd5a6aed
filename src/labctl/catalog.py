"""Finds the labs of a checkout: each ``labs/NN-name/lab.py`` is run, and the LAB that it declares is taken."""

from __future__ import annotations

import contextlib
import importlib.util
import re
import sys
import threading
import traceback
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict, TypeAdapter

from labctl.lab import Lab
from labctl.litter import files_in
from labctl.texts import parse_yaml
from labctl.workspace import Workspace
from labkit.errors import LabError

FOLDER = re.compile(r"\d\d-[a-z0-9-]+")
FILE = "course.yaml"  # the order of the labs, and the exercises of the course's core
END = "the course has passed: its exam is labctl learn ladder, its last page docs/learn/real-text.md"
SHARED = "labs"  # what several labs import: labs/shared/llm.py is the module labs.shared.llm

_loading = threading.Lock()


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


@dataclass(frozen=True)
class Catalog:
    """All labs, and the one namespace of their short names and stack names.

    Attributes:
        every: the labs that could be read.
        broken: why the others could not, by the path of their program.
        course: the order that they are in.
    """

    every: tuple[Lab, ...]
    broken: Mapping[str, str] = field(default_factory=dict)
    course: Course = ()

    @property
    def labs(self) -> tuple[Lab, ...]:
        """All labs, in the order of the course. Raises LabError if one could not be read."""
        if self.broken:
            raise self._refusal()
        return self.every

    def lab(self, word: str) -> Lab:
        """The lab of a number (``02`` or ``2``), a folder name, a short name or the name of one of its stacks.

        Raises LabError: there is none, or it could not be read.
        """
        for lab in self.every:
            if word in (lab.number, lab.number.lstrip("0"), lab.folder, lab.folder[3:], lab.short, *lab.stacks):
                return lab
        if self.broken:  # whose name may be meant
            raise self._refusal()
        raise LabError(
            f"there is no lab or stack '{word}'", f"known: {self._names()}", "labctl list", code="stack-unknown"
        )

    def stack(self, word: str) -> tuple[Lab, str]:
        """The lab and the name of the stack of that name, or the only stack of the lab that ``word`` names."""
        lab = self.lab(word)
        if word in lab.stacks:
            return lab, word
        if len(lab.stacks) == 1:
            return lab, next(iter(lab.stacks))
        raise LabError(
            f"lab {lab.number} ({lab.short}) has {len(lab.stacks)} stacks",
            f"name one of them: {', '.join(lab.stacks)}",
            f"labctl up {next(iter(lab.stacks))}",
            code="stack-ambiguous",
        )

    def _names(self) -> str:
        return ", ".join(word for lab in self.every for word in dict.fromkeys((lab.short, *lab.stacks)))

    def _refusal(self) -> LabError:
        details = [f"{where}: {why}" for where, why in self.broken.items()]
        return LabError("a lab cannot be read", "", "correct what is named above", details=details, code="lab-broken")


_loaded: dict[Path, tuple[tuple[object, ...], Catalog]] = {}  # under _loading


def load_catalog(workspace: Workspace) -> Catalog:
    """Read the labs of a checkout, once in a process for the same files."""
    paths = files_in(workspace.labs, "*/lab.py")
    sources = [*paths, *files_in(workspace.labs / "shared", "*.py"), *files_in(workspace.labs, FILE)]
    stamp = tuple((path, path.stat().st_mtime_ns, path.stat().st_size) for path in sources)
    with _loading:
        if workspace.root not in _loaded or _loaded[workspace.root][0] != stamp:
            _loaded[workspace.root] = stamp, _read(workspace, paths)
        return _loaded[workspace.root][1]


def load_lab(workspace: Workspace, folder: str, stack: str) -> Lab:
    """Read one lab of a checkout, and no other. Raises LabError: it cannot be read, or has no such stack."""
    path = workspace.labs / folder / "lab.py"
    with _loading, _importing(workspace):
        try:
            lab = replace(_run(path), folder=folder)
        except Exception as error:  # as in _read
            raise broken_lab(workspace, folder, error) from error
    if stack not in lab.stacks:
        raise LabError(f"lab {folder} has no stack '{stack}'", "", "labctl list", code="stack-unknown")
    return lab


def broken_lab(workspace: Workspace, folder: str, error: Exception, text: str | None = None) -> LabError:
    """Make the error of a mistake in a lab's program.

    Args:
        text: what stands in the mistaken line, where the line itself raised nothing.
    """
    path = workspace.labs / folder / "lab.py"
    why = _in_one_line(error, path, text)
    return LabError(f"lab {folder} cannot be used", why, f"correct {path}", code="lab-broken")


@contextlib.contextmanager
def refuse_mistakes(workspace: Workspace, folder: str) -> Iterator[None]:
    """Call a lab's program in the block. Raises LabError: it raised one, or anything else, which is its mistake."""
    try:
        yield
    except LabError:
        raise
    except Exception as error:
        raise broken_lab(workspace, folder, error) from error


@contextlib.contextmanager
def _importing(workspace: Workspace) -> Iterator[None]:
    """Let labs import what is shared by those of this checkout."""
    sys.path.insert(0, str(workspace.root))
    try:
        yield
    finally:
        sys.path.remove(str(workspace.root))
        for name in [name for name in sys.modules if name == SHARED or name.startswith(f"{SHARED}.")]:
            del sys.modules[name]  # another checkout in this process has its own


def _read(workspace: Workspace, paths: list[Path]) -> Catalog:
    labs: list[Lab] = []
    broken: dict[str, str] = {}
    owners: dict[str, str] = {}
    with _importing(workspace):
        for path in paths:
            where = path.relative_to(workspace.root).as_posix()
            try:
                lab = replace(_run(path), folder=path.parent.name)
                if taken := [name for name in {lab.short, *lab.stacks, lab.number} if name in owners]:
                    raise ValueError(f"the name '{taken[0]}' is already taken by {owners[taken[0]]}")
            except Exception as error:  # a person's program: whatever it raises is told
                broken[where] = _in_one_line(error, path)
                continue
            owners |= dict.fromkeys({lab.short, *lab.stacks, lab.number}, lab.folder)
            labs.append(lab)
    course: Course = ()
    try:
        course = read_course(workspace.labs)
    except ValueError as error:
        broken[(workspace.labs / FILE).relative_to(workspace.root).as_posix()] = " ".join(str(error).split())
    return Catalog(tuple(sorted(labs, key=lambda lab: place_of_lab(course, lab.number))), broken, course)


def _run(path: Path) -> Lab:
    """Run a lab's program, and return its LAB. Raises whatever it raises; ValueError: it declares none."""
    if not FOLDER.fullmatch(path.parent.name):
        raise ValueError(f"its folder is called NN-name, not {path.parent.name}")
    spec = importlib.util.spec_from_file_location(f"lab_{path.parent.name[:2]}", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where pydantic looks the types of its settings up
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules[spec.name]
    if not isinstance(lab := getattr(module, "LAB", None), Lab):
        raise ValueError("it declares no LAB = Lab(...)")
    return lab


def _in_one_line(error: Exception, path: Path, text: str | None = None) -> str:
    """What was raised, with the line of the lab's program or of what labs share; else the line that has ``text``."""
    places = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError) and error.filename:
        places.append((error.filename, error.lineno))
    if text:
        lines = path.read_text(encoding="utf-8").splitlines()
        places += [(str(path), number) for number, line in enumerate(lines, 1) if text in line][:1]
    labs = path.parents[1]
    where = ""
    for file, line in places:  # the last one is the innermost
        if Path(file).is_relative_to(labs):
            where = f"line {line}: " if file == str(path) else f"{Path(file).relative_to(labs.parent)}, line {line}: "
    return f"{where}{type(error).__name__}: {' '.join(str(error).split())}"
