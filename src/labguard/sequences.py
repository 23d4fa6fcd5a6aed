"""Sequence ids: their type and length, and that two requests of an iterative model do not share one.

Triton copies an id into memory of its configured type's size, whatever was sent: a text may be longer.

With ``iterative_sequence`` it keeps one entry for an id and gives a request of such a model a new place in its queue
after each step. Where another request of that id has ended the entry, or has no START flag, the first is lost: nobody
answers it, in any release so far (docs/operate/security.md). So an id that a client chooses is used once, by one
request that begins its sequence.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from tritonclient.grpc import service_pb2

from labguard.models import Models
from labguard.rules import Refused

CHOICE = "parameter_choice"
REMEMBERED = 2**17  # ids; at most 2**14 requests are in flight
LONGEST = 128  # bytes of an id that is a text; Triton takes no longer one
NAMES = {int: "numbers", str: "texts"}
OWN = 2**32  # Triton numbers requests without an id itself, from 1 on


class Sequences:
    """Remembers which ids were used."""

    def __init__(self, models: Models) -> None:
        self._models = models
        self._used: OrderedDict[tuple[str, int | str], None] = OrderedDict()

    async def check_http(self, model: str, document: Any) -> None:
        """Judge the JSON of an ``infer`` request (``generate`` knows no sequences). Raises Refused."""
        parameters = document.get("parameters") if isinstance(document, dict) else None
        if isinstance(parameters, dict):
            await self.check(model, parameters)

    async def check_grpc(self, request: service_pb2.ModelInferRequest) -> None:
        """Judge a gRPC request. Raises Refused."""
        if "sequence_id" in request.parameters:
            given = {
                name: getattr(request.parameters[name], request.parameters[name].WhichOneof(CHOICE) or "", None)
                for name in request.parameters
                if name.startswith("sequence_")
            }
            await self.check(request.model_name, given)

    async def check(self, model: str, parameters: Mapping[str, Any]) -> None:
        """Judge one request by its parameters.

        Raises:
            Refused
        """
        id = parameters.get("sequence_id")
        if isinstance(id, str) and ("\0" in id or len(id.encode(errors="surrogatepass")) > LONGEST):
            raise Refused(f"sequence_id: a text of up to {LONGEST} bytes without NUL, or a number")
        if not isinstance(id, int | str) or not id:
            return
        kind = await self._models.kind(model)
        if not isinstance(id, kind.ids):
            raise Refused(f"sequence_id: {model} takes {' or '.join(NAMES[type] for type in kind.ids) or 'none'}")
        if not kind.iterative:
            return
        if not parameters.get("sequence_start") or parameters.get("sequence_end"):
            raise Refused(
                f"{model} schedules one request again and again: it must have sequence_start and no sequence_end"
            )
        if isinstance(id, int) and not OWN <= id < 2**64:
            raise Refused(f"sequence_id: leave it out, or take a text or a number from {OWN} to 2^64 - 1")
        if (model, id) in self._used:
            raise Refused(f"sequence_id: {model} was asked with {id!r} before; leave it out, or take another")
        self._used[model, id] = None
        if len(self._used) > REMEMBERED:
            self._used.popitem(last=False)
