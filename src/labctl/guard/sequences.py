"""Sequence ids of models with ``iterative_sequence``: two requests must not share one.

Triton keeps one entry for an id and gives a request of such a model a new place in its queue after each step. Where
another request of that id has ended the entry, or has no START flag, the first is lost: nobody answers it, in any
release so far (docs/security.md). So an id that a client chooses is used once, by one request that begins its sequence.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import time
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from tritonclient.grpc import service_pb2

from labctl.guard.rules import Refused

INFER = re.compile(r"/v2/models/([^/?]+)(?:/versions/[0-9]+)?/infer")
CHOICE = "parameter_choice"
REMEMBERED = 2**17  # ids; at most 2**14 requests are in flight
BELIEVED_S = 10.0  # so long Triton is not asked again about a model
PATIENCE_S = 5.0
OWN = 2**32  # Triton numbers requests without an id itself, from 1 on


class Sequences:
    """Remembers which ids were used. ``server`` is HOST:PORT of Triton's HTTP service, which knows its models."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._iterative: OrderedDict[str, tuple[float, bool]] = OrderedDict()
        self._used: OrderedDict[tuple[str, int | str], None] = OrderedDict()

    async def check_http(self, path: str, document: Any) -> None:
        """Judge an HTTP request by its path and its JSON (``generate`` knows no sequences). Raises Refused."""
        parameters = document.get("parameters") if isinstance(document, dict) else None
        if isinstance(parameters, dict) and (found := INFER.match(path)):
            await self.check(found[1], parameters)

    async def check_grpc(self, request: service_pb2.ModelInferRequest) -> None:
        """Judge a gRPC request. Raises Refused."""
        if "sequence_id" in request.parameters:
            given = {name: getattr(request.parameters[name], request.parameters[name].WhichOneof(CHOICE) or "", None)
                     for name in request.parameters if name.startswith("sequence_")}  # fmt: skip
            await self.check(quote(request.model_name, safe=""), given)

    async def check(self, model: str, parameters: Mapping[str, Any]) -> None:
        """Judge one request by its parameters. ``model`` is its name as it stands in a path.

        Raises:
            Refused
        """
        id = parameters.get("sequence_id")
        if not isinstance(id, int | str) or not id or not await self._is_iterative(model):
            return
        if not parameters.get("sequence_start") or parameters.get("sequence_end"):
            raise Refused(
                f"{model} schedules one request again and again: it must have sequence_start and no sequence_end"
            )
        if isinstance(id, int) and id < OWN:
            raise Refused(f"sequence_id: leave it out, or take a text or a number from {OWN} on")
        if (model, id) in self._used:
            raise Refused(f"sequence_id: {model} was asked with {id!r} before; leave it out, or take another")
        _remember(self._used, (model, id), None)

    async def _is_iterative(self, model: str) -> bool:
        """Whether a request of it, or of a step of it, is scheduled again and again."""
        until, iterative = self._iterative.get(model, (0.0, False))
        if time.monotonic() < until:
            return iterative
        try:
            status, body = await asyncio.to_thread(get, self._server, f"/v2/models/{model}/config")
        except (OSError, http.client.HTTPException) as error:
            raise Refused(f"the guard cannot ask Triton about {model}: {error}") from None
        if status != 200:
            return False  # there is no such model, and Triton will say so
        config = json.loads(body)
        steps = [quote(step["model_name"], safe="") for step in config.get("ensemble_scheduling", {}).get("step", ())]
        iterative = bool(config.get("sequence_batching", {}).get("iterative_sequence"))
        iterative = iterative or any([await self._is_iterative(step) for step in steps])
        _remember(self._iterative, model, (time.monotonic() + BELIEVED_S, iterative))
        return iterative


def get(server: str, path: str) -> tuple[int, bytes]:
    """Status and body. (server_api is not for the guard: its image has only what the guard needs.)

    Raises OSError or HTTPException where there is no complete answer.
    """
    connection = http.client.HTTPConnection(server, timeout=PATIENCE_S)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def _remember(where: OrderedDict[Any, Any], key: Any, value: Any) -> None:
    where[key] = value
    if len(where) > REMEMBERED:
        where.popitem(last=False)
