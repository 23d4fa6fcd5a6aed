"""The configurations of a running server's models."""

from __future__ import annotations

from typing import Any

from tritonclient.utils import InferenceServerException

from labkit.clients.base import ASK_S, connect
from labkit.errors import LabError


def parameters(endpoint: str, name: str) -> dict[str, str]:
    """The ``parameters`` of a model's ``config.pbtxt``. Raises LabError if the server returns none."""
    return {key: str(value.string_value) for key, value in _config(endpoint, name).parameters.items()}


def models_on_the_way(endpoint: str, name: str) -> list[str]:
    """The models that a request to ``name`` goes through, in their order: an ensemble's steps, or itself."""
    steps = [str(step.model_name) for step in _config(endpoint, name).ensemble_scheduling.step]
    return [model for step in steps for model in models_on_the_way(endpoint, step)] or [name]


def _config(endpoint: str, name: str) -> Any:
    with connect(endpoint) as client:
        try:
            return client.get_model_config(name, client_timeout=ASK_S).config
        except InferenceServerException as error:
            raise LabError(
                f"Triton returned no configuration for {name}", str(error.message()), code="model-unconfigured"
            ) from error
