"""A stack with the changes of one profile, and of the settings' values, laid over it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from labctl.manifest.references import as_text, expand, holds
from labctl.manifest.schema import Overlay, Probe, Stack
from labkit.errors import LabError


def overlaid(stack: Stack, profile: str, settings: Mapping[str, Any]) -> Stack:
    """The stack as it is on ``profile`` with ``settings``.

    Raises:
        LabError: a setting's value does not go with the profile.
    """
    layers: list[Overlay] = [overlay for name, overlay in stack.profiles.items() if name == profile]
    for variant in stack.variants.values():
        if holds(variant.when, settings):
            if variant.refused:
                asked = " ".join(f"{key}={as_text(settings[key])}" for key in variant.when)
                raise LabError(f"this stack is not served with {asked}", variant.refused, "another value (labctl list)")
            if profile not in variant.profiles:
                asked = " ".join(f"{key}={as_text(settings[key])}" for key in variant.when)
                raise LabError(
                    f"{asked} is not served on the {profile} profile",
                    f"it is served on: {', '.join(variant.profiles)}",
                    f"--profile {variant.profiles[0]}, or another value (labctl list)",
                )
            layers.append(variant)
    for layer in layers:
        stack = _over(stack, layer)
    return stack


def probes(stack: Stack, scope: Mapping[str, Any]) -> dict[str, Probe]:
    """The stack's tiny inferences, with the values of ``scope`` in their bodies."""
    return {
        model: probe.model_copy(update={"body": expand(probe.body, scope)}) for model, probe in stack.probes.items()
    }


def _over(stack: Stack, layer: Overlay) -> Stack:
    own = layer.tensorrt_llm is None and layer.llmapi is None
    return stack.model_copy(
        update={
            "repository": [*(stack.repository if own else ()), *layer.repository],
            "parameters": {**(stack.parameters if own else {}), **layer.parameters},
            "artifacts": {**stack.artifacts, **layer.artifacts},
            "place": {**stack.place, **layer.place},
            "replacements": [*(stack.replacements if own else ()), *layer.replacements],
            "optional": [*(stack.optional if own else ()), *layer.optional],
            "models": layer.models or stack.models,
            "server": layer.server or stack.server,
            "image": layer.image or stack.image,
            "copies": stack.copies if layer.copies is None else layer.copies,
            "vllm": stack.vllm if layer.vllm is None else {**(stack.vllm or {}), **layer.vllm},
            "packages": layer.packages or stack.packages,
            "image_only": layer.image_only or stack.image_only,
            "tensorrt_llm": stack.tensorrt_llm if own else layer.tensorrt_llm,
            "llmapi": stack.llmapi if layer.llmapi is None else layer.llmapi,
            "probes": stack.probes if layer.probes is None else layer.probes,
            "bench": layer.bench or stack.bench,
        }
    )
