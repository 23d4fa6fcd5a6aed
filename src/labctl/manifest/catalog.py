"""Finds and reads the labs: ``labs/NN-name/lab.yaml`` is the only source of truth for what a stack is.

A manifest that is broken is refused with file, key and reason, all problems of all files at once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from labctl.litter import files_in
from labctl.manifest import checks
from labctl.manifest.schema import Lab
from labctl.manifest.settings import Setting
from labctl.workspace import Workspace
from labkit.errors import LabError
from labkit.strict_yaml import merge_yaml, parse_yaml

# Settings that every lab has without declaring them.
EVERYWHERE = {
    "trace": Setting(type="str", default="", optional=True, help="send every request's trace to otlp://HOST:PORT"),
    "slo": Setting(type="str", default="", optional=True, help="the limits of goodput, such as ttft<500ms,tpot<60ms"),
}
FOLDER = "shared"
KEYS = {"settings", "bases"}


@dataclass(frozen=True)
class Catalog:
    """All labs, and the one namespace of their short names and stack names; ``check`` refuses broken ones."""

    every: tuple[Lab, ...]
    check: Callable[[Sequence[Lab]], None] = lambda labs: None

    @property
    def labs(self) -> tuple[Lab, ...]:
        """All labs. Raises LabError if one of their manifests is broken."""
        self.check(self.every)
        return self.every

    def lab(self, word: str) -> Lab:
        """The lab of a number (``02`` or ``2``), a folder name, a short name or the name of one of its stacks.

        Raises LabError: there is none, or its manifest is broken.
        """
        for lab in self.every:
            if word in (lab.number, lab.number.lstrip("0"), lab.folder, lab.name, lab.short) or word in lab.stacks:
                self.check([lab])
                return lab
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


def load_catalog(workspace: Workspace, leave_out: Callable[[str], None] | None = None, at_use: bool = False) -> Catalog:
    """Read every manifest of the checkout.

    Args:
        at_use: a manifest of the right shape is checked only when its lab is used: a command about one lab does not
            need the others.
        leave_out: called with each problem; the labs with problems are left out.

    Raises LabError without ``leave_out``: a manifest is broken, or two use the same name; all problems are listed.
    """
    labs: list[Lab] = []
    problems: list[str] = []
    unchecked: dict[str, Callable[[], list[str]]] = {}
    owners: dict[str, str] = {}
    for path in files_in(workspace.labs, "*/lab.yaml"):
        where = path.relative_to(workspace.root).as_posix()
        try:
            texts = file_text(path), shared_texts(workspace.labs / FOLDER)
            lab = _read(*texts)
        except ValidationError as error:
            for item in error.errors():
                key = ".".join(map(str, item["loc"]))
                problems.append(f"{where}: {key}{': ' if key else ''}{item['msg']}")
            continue
        except ValueError as error:
            problems.append(f"{where}: {error}")
            continue
        own_problems = [
            f"{where}: the name '{name}' is already taken by {owners[name]}"
            for name in {lab.short, *lab.stacks, lab.number}
            if owners.setdefault(name, lab.folder) != lab.folder
        ]
        check_lab = functools.partial(_problems, workspace, path, texts)
        if at_use:
            unchecked[lab.folder] = check_lab
        else:
            own_problems += check_lab()
        problems += own_problems
        if not own_problems or leave_out is None:
            labs.append(lab)
    if leave_out:
        for problem in problems:
            leave_out(problem)
    else:
        _refuse(problems)

    def check(labs: Sequence[Lab]) -> None:
        _refuse([problem for lab in labs if lab.folder in unchecked for problem in unchecked[lab.folder]()])

    return Catalog(tuple(labs), check)


def _refuse(problems: Sequence[str]) -> None:
    if problems:
        raise LabError(
            "a lab manifest is broken", "", "correct the keys named above", details=problems, code="manifest-broken"
        )


@functools.lru_cache(maxsize=64)
def _read(text: str, common: tuple[tuple[str, str], ...]) -> Lab:
    """One manifest; parsed once in a process for the same texts.

    Raises ValueError: it does not have the shape of a manifest (pydantic's ValidationError is one).
    """
    manifest = parse_file("lab.yaml", text) or {}
    lab = Lab.model_validate(with_shared(manifest, dict(common)))
    return lab.model_copy(update={"settings": {**lab.settings, **EVERYWHERE}})


def _problems(workspace: Workspace, path: Path, texts: tuple[str, tuple[tuple[str, str], ...]]) -> list[str]:
    """Everything that is wrong with a manifest of the right shape, each with the file that it is in."""
    where = path.relative_to(workspace.root).as_posix()
    missing = checks.missing_files(_read(*texts), path.parent, workspace)
    return [f"{where}: {problem}" for problem in dict.fromkeys((*_wrong(path.parent.name, *texts), *missing))]


@functools.lru_cache(maxsize=64)
def _wrong(folder: str, text: str, common: tuple[tuple[str, str], ...]) -> list[str]:
    """What is wrong with a manifest's own text; checked once in a process for the same texts."""
    return checks.problems(_read(text, common), folder)


def file_text(path: Path) -> str:
    """The content of a file. Raises ValueError, which names the file: it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _unread(path.name, error) from error


def shared_texts(folder: Path) -> tuple[tuple[str, str], ...]:
    """The name of each shared file, and its text. Raises ValueError as ``file_text`` does."""
    return tuple((path.stem, file_text(path)) for path in files_in(folder, "*.yaml"))


@functools.lru_cache(maxsize=16)
def parse_file(name: str, text: str) -> Any:
    """One YAML file's document, not to be changed. Raises ValueError, which names the file: it is not YAML."""
    try:
        return parse_yaml(text)
    except yaml.YAMLError as error:
        raise _unread(name, error) from error


def _unread(name: str, error: Exception) -> ValueError:
    return ValueError(f"{name}: {' '.join(str(error).split())}")


def with_shared(manifest: Any, common: Mapping[str, str]) -> Any:
    """A manifest with what it includes of the shared files' texts filled in.

    Raises ValueError: it includes what is not there or is not a shared file, or a stack's base is unknown.
    """
    if not isinstance(manifest, dict):
        return manifest
    manifest = dict(manifest)
    names = manifest.pop("include", [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError("include: a list of names, such as [llm] for labs/shared/llm.yaml")
    shared: dict[str, Any] = {}
    for name in names:
        shared = merge_yaml(shared, _shared_file(name, common))
    if shared.get("settings"):
        manifest["settings"] = merge_yaml(shared["settings"], manifest.get("settings") or {})
    stacks = manifest.get("stacks")
    if isinstance(stacks, dict):
        manifest["stacks"] = {key: _lay_over_base(key, stack, shared.get("bases", {})) for key, stack in stacks.items()}
    return manifest


def _shared_file(name: str, common: Mapping[str, str]) -> dict[str, Any]:
    if name not in common:
        raise ValueError(f"include: there is no labs/{FOLDER}/{name}.yaml; there are: {', '.join(common) or 'none'}")
    content = parse_file(f"{name}.yaml", common[name])
    if not isinstance(content, dict) or not content.keys() <= KEYS:
        raise ValueError(f"include: labs/{FOLDER}/{name}.yaml has settings and bases, nothing else")
    if not all(isinstance(part, dict) for part in content.values()):
        raise ValueError(f"include: settings and bases of labs/{FOLDER}/{name}.yaml go by name")
    return content


def _lay_over_base(key: str, stack: Any, bases: Mapping[str, Any]) -> Any:
    if not isinstance(stack, dict) or "base" not in stack:
        return stack
    if (name := stack["base"]) not in bases:
        raise ValueError(f"stacks.{key}.base: no base '{name}' is included; there are: {', '.join(bases) or 'none'}")
    return merge_yaml(bases[name], {own: value for own, value in stack.items() if own != "base"})
