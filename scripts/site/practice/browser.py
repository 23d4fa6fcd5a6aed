"""The page's Python functions: texts in, JSON out. This file is beside the packages in ``practice.zip``."""

import importlib.util
import json
import sys
import tempfile
import types
from pathlib import Path

HERE = Path(__file__).parent
# Python in a browser lacks these. The files that import them are not used for what they need them for.
for name in ("fcntl", "pwd", "resource"):
    if name not in sys.modules and importlib.util.find_spec(name) is None:
        sys.modules[name] = types.ModuleType(name)

from labkit.predict import practice  # noqa: E402


def check(id: str, source: str) -> str:
    """Judge an answer to an exercise: ``passed``, ``verdict`` and ``checks``."""
    exercise = HERE / "exercises" / id
    with tempfile.TemporaryDirectory() as folder:
        file = json.loads((exercise / "exercise.json").read_text(encoding="utf-8"))["file"]
        (Path(folder) / file).write_text(source, encoding="utf-8")
        return json.dumps(practice.check_practice(exercise, Path(folder)))


def arena(source: str) -> str:
    """Play a policy: ``columns`` and ``rows``, or its ``foul``."""
    return json.dumps(practice.arena(source))
