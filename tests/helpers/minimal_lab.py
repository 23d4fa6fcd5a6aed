"""A lab manifest with little more than it must have, written where a catalogue finds it."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import yaml

from labctl.workspace import Workspace

MINIMAL: dict[str, Any] = {
    "schema": 1,
    "number": "09",
    "name": "demo",
    "short": "demo",
    "title": "t",
    "summary": "s",
    "settings": {
        "size": {"type": "int", "default": 1, "help": "h"},
        "engine": {"type": "choice", "choices": ["fast", "plain"], "default": "plain", "help": "h"},
        "loud": {"type": "bool", "default": False, "help": "h"},
    },
    "stacks": {
        "demo-stack": {
            "title": "t",
            "repository": "./models",
            "models": ["m"],
            "artifacts": {"weights": {"kind": "weights", "source": "shipped:x"}},
            "parameters": {"n": "{settings.size}"},
            "variants": {
                "fast": {"when": {"engine": "fast"}, "artifacts": {"built": {"kind": "weights", "source": "x"}}}
            },
        }
    },
    "run": {"phases": [{"name": "one", "stack": "demo-stack", "client": "client.py"}], "report": "report.py"},
}


def write(root: Path, folder: str, manifest: Any) -> Workspace:
    lab = root / "labs" / folder
    (lab / "models").mkdir(parents=True, exist_ok=True)
    for name in ("client.py", "report.py"):
        (lab / name).touch()
    (lab / "lab.yaml").write_text(manifest if isinstance(manifest, str) else yaml.safe_dump(manifest, sort_keys=False))
    return Workspace(root, root / "cache")


def changed(path: str = "", value: Any = None, **top: Any) -> dict[str, Any]:
    """``MINIMAL`` with one key changed: ``/``-separated, below the only stack where it begins with ``*``."""
    manifest = copy.deepcopy(MINIMAL) | top
    if path:
        *above, last = path.replace("*", "stacks/demo-stack").split("/")
        part = manifest
        for key in above:
            part = part[int(key)] if isinstance(part, list) else part.setdefault(key, {})
        part[last] = value
    return manifest
