"""The serving image as a TensorRT-LLM engine's builder needs it: its hardware, and a way to run a command there."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from labctl.artifacts.tensorrt_llm import GpuInfo
from labctl.runtimes import images, nvidia


class ImageBuilder:
    """``run`` runs one command in a container of the image, on this machine's GPUs."""

    def __init__(self, image: str, run: Callable[[Sequence[str]], None], devices: Sequence[str] = ()) -> None:
        self._image = image
        self._run = run
        self._devices = devices

    @property
    def hardware(self) -> Mapping[str, Any]:
        return dataclasses.asdict(target(self._image, self._devices))

    def run(self, argv: Sequence[str]) -> None:
        self._run(argv)


def target(image: str, devices: Sequence[str] = ()) -> GpuInfo:
    """What an engine that is built or served here with ``image`` is tied to.

    Args:
        devices: the GPUs that were chosen; () is the first ones.

    Raises:
        LabError: no driver, no GPU, no Docker engine.
    """
    gpus = nvidia.gpus(devices)
    first = gpus[0]
    return GpuInfo(first.name, first.compute_capability, first.driver, images.digest(image), len(gpus))
