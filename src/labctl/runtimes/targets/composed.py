"""The services of compose.yaml as Compose itself would resolve them, without Docker: files merged, variables filled.

As much of Compose as our own files use; a test holds it against ``docker compose config``.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from labctl import yamlfile
from labctl.errors import LabError

VARIABLE = re.compile(r"\$(?:\$|\{(?P<name>\w+)(?::-(?P<default>(?:[^${}]|\$\{[^{}]*\})*))?\})")
REPLACED = ("command", "entrypoint", "test")  # lists that a later file replaces; to all others it adds


def services(files: Sequence[Path], env: Mapping[str, str], folder: Path) -> dict[str, dict[str, Any]]:
    """Every service of those files, the later over the earlier.

    Args:
        folder: what relative paths of mounts begin at.

    Raises:
        LabError: a variable has neither a value nor a default.
    """
    merged: dict[str, Any] = {}
    for path in files:
        document = yamlfile.parse(path.read_text(encoding="utf-8"))
        merged = _merge(merged, {name: document.get(name, {}) for name in ("services", "secrets")})
    found: dict[str, dict[str, Any]] = _filled(merged["services"], env)
    for service in found.values():
        if isinstance(service.get("command"), str):
            service["command"] = shlex.split(service["command"])
        for mount in service.get("volumes", ()):
            mount["source"] = str(folder / Path(mount["source"]).expanduser())
    return found


def fill(text: str, env: Mapping[str, str]) -> str:
    """``${NAME:-default}`` by its value, or its default where the value is empty; ``$$`` is a dollar.

    Raises:
        LabError: there is neither.
    """

    def value(match: re.Match[str]) -> str:
        if match["name"] is None:
            return "$"
        if found := env.get(match["name"]):
            return found
        if match["default"] is None:
            raise LabError(f"compose.yaml: {match['name']} has neither a value nor a default")
        return fill(match["default"], env)

    return VARIABLE.sub(value, text)


def _filled(value: Any, env: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: _filled(item, env) for key, item in value.items()}
    if isinstance(value, list):
        return [_filled(item, env) for item in value]
    return fill(value, env) if isinstance(value, str) else value


def _merge(below: Any, above: Any, key: str = "") -> Any:
    if isinstance(below, dict) and isinstance(above, dict):
        return {name: _merge(below[name], above[name], name) if name in below and name in above
                else above.get(name, below.get(name)) for name in {**below, **above}}  # fmt: skip
    if isinstance(below, list) and isinstance(above, list) and key not in REPLACED:
        # Mounts are one per place, whatever else is said of them.
        return list({_place(item): item for item in (*below, *above)}.values())
    return above


def _place(item: Any) -> str:
    return str(item.get("target", item)) if isinstance(item, dict) else str(item).partition(":")[0]


def gpus(service: Mapping[str, Any]) -> int:
    """How many GPUs a service reserves."""
    devices = service.get("deploy", {}).get("resources", {}).get("reservations", {}).get("devices", ())
    return sum(int(device["count"]) for device in devices)


def scratch(service: Mapping[str, Any]) -> list[str]:
    """Where a service has memory for files."""
    return [text.partition(":")[0] for text in service.get("tmpfs", ())]


def seconds(text: str) -> int:
    """A duration as Compose has it: "15s", "1m30s"."""
    units = {"h": 3600, "m": 60, "s": 1}
    return sum(int(number) * units[unit] for number, unit in re.findall(r"(\d+)([hms])", text))
