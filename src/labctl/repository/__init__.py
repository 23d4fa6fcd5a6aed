"""Rendering of Triton model repositories: strict, whole or not at all, and checked before a server sees them."""

from labctl.repository.render import Rendered, RenderRequest, listing, render

__all__ = ["RenderRequest", "Rendered", "listing", "render"]
