"""What several labs say alike: a manifest that includes ``labs/shared/NAME.yaml`` takes over its settings and bases.

A shared file has ``settings``, which become the lab's own, and ``bases``, of which a stack takes one with
``base: NAME``. What the lab itself says is laid over them key by key; a list or a value replaces the shared one.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from labctl import yamlfile

FOLDER = "shared"
KEYS = {"settings", "bases"}


def text(path: Path) -> str:
    """What a file says. Raises ValueError, which names the file, for what cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _unread(path.name, error) from error


def texts(folder: Path) -> tuple[tuple[str, str], ...]:
    """The name of each shared file, and what it says. Raises ValueError as ``text`` does."""
    return tuple((path.stem, text(path)) for path in sorted(folder.glob("*.yaml")))


@functools.lru_cache(maxsize=16)
def parsed(name: str, text: str) -> Any:
    """One YAML file's document, not to be changed. Raises ValueError, which names the file, for what is none."""
    try:
        return yamlfile.parse(text)
    except yaml.YAMLError as error:
        raise _unread(name, error) from error


def _unread(name: str, error: Exception) -> ValueError:
    return ValueError(f"{name}: {' '.join(str(error).split())}")


def with_shared(manifest: Any, common: Mapping[str, str]) -> Any:
    """A manifest with what it includes of the shared files' texts filled in.

    Raises:
        ValueError: it includes what is not there or is not a shared file, or a stack's base is unknown.
    """
    if not isinstance(manifest, dict):
        return manifest
    manifest = dict(manifest)
    names = manifest.pop("include", [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError("include: a list of names, such as [llm] for labs/shared/llm.yaml")
    shared: dict[str, Any] = {}
    for name in names:
        shared = laid_over(shared, _shared(name, common))
    if shared.get("settings"):
        manifest["settings"] = laid_over(shared["settings"], manifest.get("settings") or {})
    stacks = manifest.get("stacks")
    if isinstance(stacks, dict):
        manifest["stacks"] = {key: _based(key, stack, shared.get("bases", {})) for key, stack in stacks.items()}
    return manifest


def _shared(name: str, common: Mapping[str, str]) -> dict[str, Any]:
    if name not in common:
        raise ValueError(f"include: there is no labs/{FOLDER}/{name}.yaml; there are: {', '.join(common) or 'none'}")
    content = parsed(f"{name}.yaml", common[name])
    if not isinstance(content, dict) or not content.keys() <= KEYS:
        raise ValueError(f"include: labs/{FOLDER}/{name}.yaml has settings and bases, nothing else")
    if not all(isinstance(part, dict) for part in content.values()):
        raise ValueError(f"include: settings and bases of labs/{FOLDER}/{name}.yaml go by name")
    return content


def _based(key: str, stack: Any, bases: Mapping[str, Any]) -> Any:
    if not isinstance(stack, dict) or "base" not in stack:
        return stack
    stack = dict(stack)
    name = stack.pop("base")
    if name not in bases:
        raise ValueError(f"stacks.{key}.base: no base '{name}' is included; there are: {', '.join(bases) or 'none'}")
    return laid_over(bases[name], stack)


def laid_over(lower: Any, upper: Any) -> Any:
    """``upper`` over ``lower``: mappings key by key, everything else whole."""
    if not (isinstance(lower, dict) and isinstance(upper, dict)):
        return upper
    both = {key: laid_over(value, upper[key]) if key in upper else value for key, value in lower.items()}
    return both | {key: value for key, value in upper.items() if key not in lower}
