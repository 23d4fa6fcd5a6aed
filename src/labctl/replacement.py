"""What both a manifest's stack and a TensorRT-LLM release may ask of the renderer: the workshop's ``sed``, checked."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Replacement:
    """A literal text of one template (a path below the repository) and what stands in its place.

    One that matches nothing is an error of the rendering.
    """

    file: str
    find: str
    replace: str
