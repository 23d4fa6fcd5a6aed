"""The LLM API of TensorRT-LLM: ``model.yaml`` of its model, filled as strictly as ``config.pbtxt``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from labctl.trtllm.releases import Release
from labkit.errors import LabError

FILE = "tensorrt_llm/1/model.yaml"
_TYPES: Mapping[str, tuple[type, ...]] = {"str": (str,), "int": (int,), "float": (float, int), "bool": (bool,)}


def document(release: Release, values: Mapping[str, Any]) -> dict[str, Any]:
    """The values, by dotted key, as model.yaml nests them; one that is empty is left to the LLM API.

    Raises LabError, with all that is wrong, for keys that the release does not take and values of the wrong type.
    """
    if release.llmapi is None:
        raise LabError(
            f"TensorRT-LLM {release.name} is not served by its LLM API here",
            "Triton's model of it came with 0.19.0",
            "--release 0.19.0 or 1.2.1",
        )
    problems = []
    nested: dict[str, Any] = {}
    for key, value in values.items():
        if value == "":
            continue
        kind = release.llmapi.keys.get(key)
        if kind is None:
            problems.append(f"{key}={value}: the LLM API of {release.name} takes no such key")
        elif not isinstance(value, _TYPES[kind]) or (kind != "bool" and isinstance(value, bool)):
            problems.append(f"{key}={value}: it must be of type {kind}")
        else:
            _place(nested, key.split("."), value)
    ranks = values.get("tensor_parallel_size", 1) * values.get("pipeline_parallel_size", 1) if not problems else 1
    if ranks > 1 and values.get("triton_config.decoupled"):
        problems.append("triton_config.decoupled=True: the launcher for several GPUs switches off what would set it")
    if problems:
        raise LabError("model.yaml cannot be written", "", "correct what is named above", details=problems)
    return nested


def _place(into: dict[str, Any], path: list[str], value: Any) -> None:
    for part in path[:-1]:
        into = into.setdefault(part, {})
    into[path[-1]] = value
