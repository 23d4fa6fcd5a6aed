"""The engines that there are, by name. A new one is a module with an :class:`Engine` and a line here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from labctl import weights
from labctl.engines.cache import Build
from labctl.engines.gpt2_export import Onnx, TorchScript
from labctl.engines.openvino import OpenVino
from labctl.engines.protocol import Engine
from labctl.engines.tensorrt_llm import TensorRtLlm
from labctl.errors import LabError

ENGINES: dict[str, Engine] = {engine.name: engine for engine in (OpenVino(), Onnx(), TorchScript(), TensorRtLlm())}


def get(name: str) -> Engine:
    """The engine of that name; LabError lists the names there are."""
    if name not in ENGINES:
        raise LabError(f"there is no engine '{name}'", f"there are: {', '.join(ENGINES)}")
    return ENGINES[name]


def request(name: str, spec: str, options: Mapping[str, Any]) -> Build:
    """Check an engine's options: unknown or bad ones are refused, missing ones get their defaults."""
    engine = get(name)
    if unknown := sorted(set(options) - set(engine.options)):
        raise LabError(f"the {name} engine has no option {', '.join(unknown)}", f"it has: {', '.join(engine.options)}")
    read = {key: option.read(key, options.get(key, option.default)) for key, option in engine.options.items()}
    return Build(engine, weights.parse(spec), read)
