"""A learner's own part of GPT-2's decoding: ``blocks.py`` or ``lookup.py`` next to ``model.py``."""

import importlib.util
import traceback
from pathlib import Path
from typing import Any

from labserve.params import Refusal


class OwnFile:
    """The module in a file of the learner's. An exception in it becomes a Refusal that names file and line."""

    def __init__(self, path: Path) -> None:
        spec = importlib.util.spec_from_file_location(f"own_{path.stem}", path)
        assert spec and spec.loader
        self._module, self._path = importlib.util.module_from_spec(spec), path
        spec.loader.exec_module(self._module)

    def find(self, name: str) -> Any:
        """The class or function of that name. Raises ValueError if the file has none."""
        value = getattr(self._module, name, None)
        if not callable(value):
            raise ValueError(f"{self._path.name}: it needs `{name}`")
        return value

    def call(self, function: Any, *arguments: Any) -> Any:
        """The function's value. Raises Refusal if it raises."""
        try:
            return function(*arguments)
        except Exception as error:
            frames = traceback.extract_tb(error.__traceback__)
            lines = [frame.lineno for frame in frames if Path(frame.filename) == self._path]
            where = f", line {lines[-1]}" if lines else ""
            raise Refusal(f"{self._path.name}{where}: {type(error).__name__}: {error}") from error

    def require(self, ok: bool, words: str) -> None:
        """Raises Refusal with these words about the file, unless it is ok."""
        if not ok:
            raise Refusal(f"{self._path.name}: {words}")


def file_beside(args: dict[str, str], name: str) -> OwnFile | None:
    """The file of that name next to a model's ``model.py``; None if there is none.

    `args` are those of Triton's `initialize`. Raises what the file raises when it is loaded.
    """
    path = Path(args.get("model_repository", ""), args.get("model_version", ""), name)
    return OwnFile(path) if "model_repository" in args and path.is_file() else None
