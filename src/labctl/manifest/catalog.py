"""Finds and reads the labs: ``labs/NN-name/lab.yaml`` is the only source of truth for what a stack is.

A manifest that is broken is refused with file, key and reason, all problems of all files at once.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from labctl.errors import LabError
from labctl.manifest import checks, shared
from labctl.manifest.schema import Lab
from labctl.manifest.settings import Setting
from labctl.workspace import Workspace

# Settings that every lab has without saying so.
EVERYWHERE = {
    "trace": Setting(
        type="str", default="", optional=True, help="send every request's trace to this receiver: otlp://HOST:PORT"
    )
}


@dataclass(frozen=True)
class Catalog:
    """All labs, and the one namespace of their short names and stack names."""

    labs: tuple[Lab, ...]

    def lab(self, word: str) -> Lab:
        """The lab of a number (``02`` or ``2``), a folder name, a short name or the name of one of its stacks."""
        for lab in self.labs:
            if word in (lab.number, lab.number.lstrip("0"), lab.folder, lab.name, lab.short) or word in lab.stacks:
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
        return ", ".join(word for lab in self.labs for word in dict.fromkeys((lab.short, *lab.stacks)))


def load(workspace: Workspace) -> Catalog:
    """Read every manifest of the checkout.

    Raises:
        LabError: some manifest is broken, or two of them use one name; all problems are listed.
    """
    labs: list[Lab] = []
    problems: list[str] = []
    owners: dict[str, str] = {}
    for path in sorted(workspace.labs.glob("*/lab.yaml")):
        where = path.relative_to(workspace.root).as_posix()
        try:
            lab, wrong = _read(path.parent.name, shared.text(path), shared.texts(workspace.labs / shared.FOLDER))
        except ValidationError as error:
            problems += [f"{where}: {_where(item)}{item['msg']}" for item in error.errors()]
            continue
        except ValueError as error:
            problems.append(f"{where}: {error}")
            continue
        missing = checks.missing(lab, path.parent, workspace)
        problems += [f"{where}: {problem}" for problem in dict.fromkeys((*wrong, *missing))]
        for word in {lab.short, *lab.stacks, lab.number}:
            if word in owners and owners[word] != lab.folder:
                problems.append(f"{where}: the name '{word}' is already taken by {owners[word]}")
            owners[word] = lab.folder
        labs.append(lab)
    if problems:
        raise LabError("a lab manifest is broken", "", "correct the keys named above", details=problems)
    return Catalog(tuple(labs))


@functools.lru_cache(maxsize=64)
def _read(folder: str, text: str, common: tuple[tuple[str, str], ...]) -> tuple[Lab, list[str]]:
    """One manifest, and what is wrong with it wherever it stands; once in a process for the same texts.

    Raises:
        ValueError: it has not the shape of a manifest (pydantic's ValidationError is one).
    """
    manifest = shared.parsed("lab.yaml", text) or {}
    lab = Lab.model_validate(shared.with_shared(manifest, dict(common)))
    wrong = checks.problems(lab, folder)
    return lab.model_copy(update={"settings": {**lab.settings, **EVERYWHERE}}), wrong


def _where(item: Mapping[str, Any]) -> str:
    key = ".".join(str(part) for part in item["loc"])
    return f"{key}: " if key else ""
