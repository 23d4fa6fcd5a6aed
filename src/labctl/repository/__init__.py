"""Rendering of Triton model repositories: strict, whole or not at all, and checked before a server sees them."""

from labctl.repository.render import (
    CONFIG,
    YOURS,
    Rendered,
    RenderRequest,
    listing,
    origins,
    render,
    spare,
    unknown,
    without_effect,
)

__all__ = [
    "CONFIG",
    "YOURS",
    "RenderRequest",
    "Rendered",
    "listing",
    "origins",
    "render",
    "spare",
    "unknown",
    "without_effect",
]
