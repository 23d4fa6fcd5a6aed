"""What the judge must know of a model, asked from Triton's HTTP service."""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from labguard.rules import Refused

NAME, VERSION = re.compile(r"[\w.-]{1,255}", re.ASCII), re.compile(r"|[1-9][0-9]{0,17}", re.ASCII)
BELIEVED_S, UNKNOWN_S = 10.0, 1.0  # so long Triton is not asked again about a model that it serves, or does not
REMEMBERED = 2**12  # models and versions
PATIENCE_S = 15.0  # less than Envoy has with the judge
UNKNOWN = (400, 404)  # Triton's statuses for a model or version that it does not serve


@dataclass(frozen=True)
class Kind:
    """How Triton serves a model. One that it does not serve has neither property.

    Attributes:
        iterative: a request of it, or of a step of it, is scheduled again and again.
        decoupled: a request of it may have any number of responses.
        ids: types that a sequence id may have. Triton writes it, and reads it, as the type that a model, or a step of
            it, configures for its CORRID control; another type ends Triton in its memory.
    """

    iterative: bool = False
    decoupled: bool = False
    ids: tuple[type, ...] = (int, str)


class Models:
    """The kinds of models. ``server`` is HOST:PORT of Triton's HTTP service."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._known: OrderedDict[tuple[str, str], tuple[float, Kind]] = OrderedDict()

    async def kind(self, model: str, version: str = "") -> Kind:
        """The kind of a model, or of one of its versions.

        Raises:
            Refused: the name or the version is malformed, or Triton did not answer.
        """
        if not NAME.fullmatch(model):
            raise Refused("model_name must have 1 to 255 letters, digits, '_', '-' and '.'")
        if not VERSION.fullmatch(version):
            raise Refused("model_version must be empty or a number from 1 on, without leading zeros")
        until, kind = self._known.get((model, version), (0.0, Kind()))
        if time.monotonic() < until:
            return kind
        path = f"/v2/models/{model}" + (f"/versions/{version}" if version else "")
        try:
            status, body = await asyncio.to_thread(get, self._server, f"{path}/config")
        except (OSError, http.client.HTTPException) as error:
            raise Refused(f"the guard cannot ask Triton about {model}: {error}", 503) from None
        if status in UNKNOWN:
            return self._remember(model, version, UNKNOWN_S, Kind())
        if status != 200:
            raise Refused(f"the guard cannot ask Triton about {model}: it answered with status {status}", 503)
        config = json.loads(body)
        steps = [await self.kind(step["model_name"]) for step in config.get("ensemble_scheduling", {}).get("step", ())]
        batching = config.get("sequence_batching", {})
        known = Kind(
            bool(batching.get("iterative_sequence")) or any(step.iterative for step in steps),
            bool(config.get("model_transaction_policy", {}).get("decoupled")),
            tuple(type for type in _ids(batching) if all(type in step.ids for step in steps)),
        )
        return self._remember(model, version, BELIEVED_S, known)

    def _remember(self, model: str, version: str, seconds: float, kind: Kind) -> Kind:
        self._known[model, version] = time.monotonic() + seconds, kind
        if len(self._known) > REMEMBERED:
            self._known.popitem(last=False)
        return kind


def _ids(batching: Mapping[str, Any]) -> tuple[type, ...]:
    """The types of a sequence id that a model with this ``sequence_batching`` takes."""
    controls = [control for given in batching.get("control_input", ()) for control in given.get("control", ())]
    types = {control.get("data_type") for control in controls if control.get("kind") == "CONTROL_SEQUENCE_CORRID"}
    return (int, str) if not types else (str,) if types == {"TYPE_STRING"} else (int,)


def get(server: str, path: str) -> tuple[int, bytes]:
    """Status and body.

    Raises OSError or HTTPException where there is no complete answer.
    """
    connection = http.client.HTTPConnection(server, timeout=PATIENCE_S)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()
