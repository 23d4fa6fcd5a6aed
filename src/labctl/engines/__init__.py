"""Engines: a model compiled for the place where it runs, from Hugging Face weights.

``openvino`` for CPUs is made here; ``tensorrt-llm`` for NVIDIA GPUs is made by the builder of the image that serves it.
Both have one interface: a :class:`Build` (engine + weights + options) knows its folder, whether it is whole, and how
it is made.
"""

from labctl.engines.cache import Build, list_cached, prune
from labctl.engines.protocol import Engine, Option
from labctl.engines.registry import ENGINES, get, request

__all__ = ["ENGINES", "Build", "Engine", "Option", "get", "list_cached", "prune", "request"]
