"""Finds and reads the labs: ``labs/NN-name/lab.yaml`` is the only source of truth for what a stack is.

A manifest that is broken is refused with file, key and reason, all problems of all files at once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from labctl.manifest import checks, shared
from labctl.manifest.schema import Lab
from labctl.manifest.settings import Setting
from labctl.workspace import Workspace
from labkit.errors import LabError

# Settings that every lab has without saying so.
EVERYWHERE = {
    "trace": Setting(
        type="str", default="", optional=True, help="send every request's trace to this receiver: otlp://HOST:PORT"
    )
}


@dataclass(frozen=True)
class Catalog:
    """All labs, and the one namespace of their short names and stack names.

    Attributes:
        every: the labs, some of which may be broken.
        check: raises LabError where the manifest of one of these labs is broken.
    """

    every: tuple[Lab, ...]
    check: Callable[[Sequence[Lab]], None] = lambda labs: None

    @property
    def labs(self) -> tuple[Lab, ...]:
        """All labs. Raises LabError where one of their manifests is broken."""
        self.check(self.every)
        return self.every

    def lab(self, word: str) -> Lab:
        """The lab of a number (``02`` or ``2``), a folder name, a short name or the name of one of its stacks.

        Raises:
            LabError: there is none, or its manifest is broken.
        """
        for lab in self.every:
            if word in (lab.number, lab.number.lstrip("0"), lab.folder, lab.name, lab.short) or word in lab.stacks:
                self.check([lab])
                return lab
        raise LabError(f"there is no lab or stack '{word}'", f"known: {self._names()}", "labctl list")

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
        )

    def _names(self) -> str:
        return ", ".join(word for lab in self.every for word in dict.fromkeys((lab.short, *lab.stacks)))


def load(workspace: Workspace, leave_out: Callable[[str], None] | None = None, at_use: bool = False) -> Catalog:
    """Read every manifest of the checkout.

    Args:
        at_use: a manifest of the right shape is checked when its lab is asked for: a command that is about one lab
            does without the others'.
        leave_out: called with each problem; the labs that have one are left out.

    Raises:
        LabError: some manifest is broken, or two of them use one name, and nobody leaves them out; all problems are
            listed.
    """
    labs: list[Lab] = []
    every: list[str] = []
    unchecked: dict[str, Callable[[], list[str]]] = {}
    owners: dict[str, str] = {}
    for path in sorted(workspace.labs.glob("*/lab.yaml")):
        where = path.relative_to(workspace.root).as_posix()
        problems: list[str] = []
        try:
            texts = shared.text(path), shared.texts(workspace.labs / shared.FOLDER)
            lab = _read(*texts)
        except ValidationError as error:
            every += [f"{where}: {_where(item)}{item['msg']}" for item in error.errors()]
            continue
        except (ValueError, OSError) as error:
            every.append(f"{where}: {error}")
            continue
        find = functools.partial(_problems, workspace, path, *texts)
        if at_use:
            unchecked[lab.folder] = find
        else:
            problems += find()
        for word in {lab.short, *lab.stacks, lab.number}:
            if word in owners and owners[word] != lab.folder:
                problems.append(f"{where}: the name '{word}' is already taken by {owners[word]}")
            owners[word] = lab.folder
        every += problems
        if not problems or leave_out is None:
            labs.append(lab)
    if leave_out is None:
        _refuse(every)
    for problem in every:
        assert leave_out
        leave_out(problem)

    def check(labs: Sequence[Lab]) -> None:
        _refuse([problem for lab in labs if lab.folder in unchecked for problem in unchecked[lab.folder]()])

    return Catalog(tuple(labs), check)


def _refuse(problems: Sequence[str]) -> None:
    if problems:
        raise LabError("a lab manifest is broken", "", "correct the keys named above", details=problems)


@functools.lru_cache(maxsize=64)
def _read(text: str, common: tuple[tuple[str, str], ...]) -> Lab:
    """One manifest; once in a process for the same texts.

    Raises:
        ValueError: it has not the shape of a manifest (pydantic's ValidationError is one).
    """
    manifest = shared.parsed("lab.yaml", text) or {}
    lab = Lab.model_validate(shared.with_shared(manifest, dict(common)))
    return lab.model_copy(update={"settings": {**lab.settings, **EVERYWHERE}})


def _problems(workspace: Workspace, path: Path, text: str, common: tuple[tuple[str, str], ...]) -> list[str]:
    """Everything that is wrong with a manifest of the right shape, each with the file that it is in."""
    where = path.relative_to(workspace.root).as_posix()
    wrong = _wrong(path.parent.name, text, common)
    missing = checks.missing(_read(text, common), path.parent, workspace)
    return [f"{where}: {problem}" for problem in dict.fromkeys((*wrong, *missing))]


@functools.lru_cache(maxsize=64)
def _wrong(folder: str, text: str, common: tuple[tuple[str, str], ...]) -> list[str]:
    """What is wrong with a manifest wherever it stands; once in a process for the same texts."""
    lab = _read(text, common)
    own = {key: setting for key, setting in lab.settings.items() if key not in EVERYWHERE}
    return checks.problems(lab.model_copy(update={"settings": own}), folder)


def _where(item: Mapping[str, Any]) -> str:
    key = ".".join(str(part) for part in item["loc"])
    return f"{key}: " if key else ""
