"""YAML as our own files have it, read by libyaml: the pure-Python loader takes eight times as long."""

from __future__ import annotations

from typing import Any

import yaml

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # a build without libyaml has only the slow one


def parse(text: str) -> Any:
    """The document in ``text``. Raises yaml.YAMLError."""
    return yaml.load(text, Loader=_LOADER)
