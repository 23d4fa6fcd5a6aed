"""Every ``config.pbtxt`` against Triton's own schema: the protobuf ``ModelConfig`` that tritonclient carries."""

from __future__ import annotations

import functools
import importlib.util
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from labctl.template import Problem, Use, as_text

MODULE = "tritonclient.grpc.model_config_pb2"
_POSITION = re.compile(r"^(\d+):(\d+) : (?:'.*': )?(.*)$", re.DOTALL)  # some messages begin with the whole line


def parse(
    file: str, text: str, uses: Sequence[Use] = (), values: Mapping[str, Any] | None = None
) -> tuple[Any, list[Problem]]:
    """The parsed ``ModelConfig`` (None if it is not one) and what is wrong with it.

    Args:
        text: a filled template.
        uses: the template's placeholders: an error on the line of one is told with its key.
        values: what they were filled with: a value of several lines moves all that follows it.
    """
    from google.protobuf import text_format

    try:
        return _parsed(text), []
    except text_format.ParseError as error:
        match = _POSITION.match(str(error))
        line, message = (int(match[1]), match[3]) if match else (error.GetLine() or 0, str(error))
        line, keys = _blame(line, uses, values or {})
        return None, [Problem(file, line, ", ".join(dict.fromkeys(keys)), " ".join(message.split()))]


@functools.lru_cache(maxsize=256)  # the phases of a run differ in one model, if in any
def _parsed(text: str) -> Any:
    """The ``ModelConfig``, which nobody changes. Raises ParseError."""
    from google.protobuf import text_format

    return text_format.Parse(text, _schema().ModelConfig())


def _schema() -> ModuleType:
    """The one module of tritonclient that is needed here: its package would import gRPC and numpy, which take 0.2 s."""
    if MODULE not in sys.modules:
        package = importlib.util.find_spec("tritonclient")
        folder = Path(next(iter((package and package.submodule_search_locations) or ["tritonclient"])))
        spec = importlib.util.spec_from_file_location(MODULE, folder / "grpc" / "model_config_pb2.py")
        assert spec and spec.loader
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        sys.modules[MODULE] = module  # whoever imports the package later finds this one
    return sys.modules[MODULE]


def _blame(line: int, uses: Sequence[Use], values: Mapping[str, Any]) -> tuple[int, list[str]]:
    """The line of the template that a line of the filled text comes from, and the keys that stand on it."""
    shift = 0
    plain = [use for use in uses if not use.comment]
    for use in plain:
        if use.line + shift >= line:
            break
        if not use.quoted:  # inside quotes a line end is written as an escape
            shift += min(as_text(values.get(use.key)).count("\n"), line - use.line - shift)
    line -= shift
    # A value that is empty, or is not closed, is noticed only at the next word, which may be on the next line.
    for at in (line, line - 1):
        if keys := [use.key for use in plain if use.line == at and (at == line or not use.quoted)]:
            return at, keys
    return line, []
