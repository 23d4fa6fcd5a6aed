"""Rendering of Triton model repositories: strict, whole or not at all, and checked before a server sees them."""

from labctl.repository.render import YOURS, Rendered, RenderRequest, listing, origins, render, spare, without_effect

__all__ = ["YOURS", "RenderRequest", "Rendered", "listing", "origins", "render", "spare", "without_effect"]
