"""Requests to ``tensorrt_llm``: read from their tensors, and answered with tokens, whole or one by one."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from labsched.request import End, Request
from labserve.answers import SentAnswers
from labserve.driver import Stop
from labserve.guard import Guard
from labserve.inflight.parse import parse_generation, rivals, schema, tenant_and_priority
from labserve.inflight.setup import AnySetup
from labserve.tensors import read_single
from labserve.text.logprobs import LOGPROBS, join_token_texts
from labserve.triton import FINAL, input_reader
from labserve.vllm.engine import VllmScheduler

CONTEXT = 8  # ids before a new one that a detokenizer may need


class TokenReader:
    """Makes the scheduler's requests of Triton's."""

    def __init__(self, setup: AnySetup, guard: Guard) -> None:
        self._setup, self._guard = setup, guard

    def read(self, source: Any, number: int) -> Request | Stop:
        """Raises BadInput, which names the input at fault."""
        read, scheduler = input_reader(source), self._setup.scheduler
        if read_single(read, "stop", False):
            return Stop(source.request_id(), partial(send_tokens, source, [], [], last=True))
        self._guard.check(source)
        request = parse_generation(source.request_id() or f"#{number}", read, self._setup.shape)
        request.source, request.number = source, number
        parameters = source.parameters()
        request.tenant, request.priority = tenant_and_priority(parameters)
        request.schema = schema(parameters, able=isinstance(scheduler, VllmScheduler))
        if (wanted := rivals(parameters)) is not None:
            request.scored = self._setup.log_probs.open(request, wanted)
        if isinstance(scheduler, VllmScheduler):
            scheduler.compile(request)
        return request


class TokenAnswers(SentAnswers):
    """Answers a request whole, or token by token where it is `streaming` and the model `decoupled`."""

    def __init__(self, guard: Guard, decoupled: bool) -> None:
        super().__init__(guard)
        self.decoupled = decoupled

    def stream(self, request: Request, tokens: Sequence[int]) -> None:
        """Send one response for each new token; the last one carries the final flag. Raises what `send` raises."""
        if not (self.decoupled and request.streaming):
            return
        ids = request.ids[-CONTEXT - len(tokens) :]
        scored = request.scored.of(tokens) if request.scored else [""] * len(tokens)
        for index, (token, log_probs) in enumerate(zip(tokens, scored, strict=True), len(ids) - len(tokens)):
            last = request.end is not None and index == len(ids) - 1
            send_tokens(request.source, [token], ids[max(0, index - CONTEXT) : index], last, log_probs)
            if last:
                self._final.add(request)

    def last(self, request: Request) -> None:
        if request.end is End.CANCELLED:
            send_tokens(request.source, [], [], last=False, final=True)
            return
        if self.decoupled and request.streaming:
            send_tokens(request.source, [], [], last=True)
            return
        log_probs = join_token_texts(request.scored.of(request.output)) if request.scored else ""
        send_tokens(request.source, request.ids, [], last=True, log_probs=log_probs)


def send_tokens(
    source: Any, ids: Sequence[int], context: Sequence[int], last: bool, log_probs: str = "", final: bool = False
) -> None:
    """Send new tokens, and the tokens before them; the `last` response carries the final flag.

    A `final` response that is not the `last` of its answer tells the next model of an ensemble that the answer was cut.
    `log_probs` of the tokens are an output of their own, which is left out if they are empty.
    """
    tensors = [
        pb_utils.Tensor("output_ids", np.array([[ids]], dtype=np.int32)),
        pb_utils.Tensor("context_ids", np.array([context], dtype=np.int32)),
        pb_utils.Tensor("last", np.array([[last]])),
    ]
    if log_probs:
        tensors.append(pb_utils.Tensor(LOGPROBS, np.array([[log_probs.encode()]], dtype=object)))
    source.get_response_sender().send(pb_utils.InferenceResponse(tensors), FINAL if last or final else 0)
