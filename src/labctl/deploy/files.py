"""The files of this package: filled, parsed, and written as YAML."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from labctl import template, yamlfile
from labkit.errors import LabError

FOLDER = Path(__file__).parent
CONFIG = "/etc/envoy/envoy.json"  # in Envoy's containers


def fill(name: str, values: Mapping[str, Any]) -> str:
    """The file ``name`` of this package with every placeholder filled.

    Raises:
        LabError: a placeholder has no value.
    """
    text, problems = template.fill(name, (FOLDER / name).read_text(encoding="utf-8"), values, optional=values)
    if problems:
        raise LabError(f"{name} cannot be filled", details=[str(problem) for problem in problems])
    return text


def parse(text: str) -> Any:
    """The document in ``text``. What is empty in it (``name: ""``) is left out, and what holds nothing else."""
    return _without_empty(yamlfile.parse(text))


def _without_empty(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: left for key, item in value.items() if not _emptied(left := _without_empty(item), item)}
    if isinstance(value, list):
        return [left for item in value if not _emptied(left := _without_empty(item), item)]
    return value


def _emptied(left: Any, before: Any) -> bool:
    return left is None or left == "" or (left in ({}, []) and left != before)


class _Dumper(yamlfile.Dumper):  # type: ignore[misc]
    """No anchors, and scripts as blocks."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


_Dumper.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None),
)


def dump(document: Any) -> str:
    return str(yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=120))
