"""How a request to ``tensorrt_llm`` is answered: whole, or token by token."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from labsched.request import End, Request
from labserve.guard import Guard
from labserve.text.logprobs import LOGPROBS, join_token_texts
from labserve.triton import FINAL

CONTEXT = 8  # ids before a new one that a detokenizer may need


class Answers:
    """Triton's requests that have no final response yet, by number.

    A response that cannot be sent concerns its own request alone. The counterpart in vLLM V1 is `OutputProcessor`
    (vllm/v1/engine/output_processor.py).
    """

    def __init__(self, guard: Guard, decoupled: bool, ended: Callable[[Request], None]) -> None:
        """`ended` is called with each request after its final response."""
        self.decoupled = decoupled
        self._guard, self._ended = guard, ended
        self._open: dict[int, Any] = {}
        self._final: set[int] = set()  # of these, the ones whose last token carried the final flag
        self._count = 0

    def expect(self, source: Any) -> int:
        """Take note of one of Triton's requests. Returns its number."""
        self._count += 1
        self._open[self._count] = source
        return self._count

    def stream(self, request: Request, tokens: Sequence[int]) -> None:
        """Send one response for each new token; the last one carries the final flag. Raises what `send` raises."""
        if not (self.decoupled and request.streaming):
            return
        ids = (request.prompt + request.output)[-CONTEXT - len(tokens) :]
        scored = request.scored.of(tokens) if request.scored else [""] * len(tokens)
        for index, (token, log_probs) in enumerate(zip(tokens, scored, strict=True), len(ids) - len(tokens)):
            last = request.end is not None and index == len(ids) - 1
            send_tokens(request.source, [token], ids[max(0, index - CONTEXT) : index], last, log_probs)
            if last:
                self._final.add(request.number)

    def finish(self, request: Request) -> None:
        """Send the final response of a request that has ended; harmless if it has had one."""
        source = self._open.pop(request.number, None)
        if source is None:
            return
        try:
            if request.error:
                raise request.error
            if request.number not in self._final:
                self.last(request)
        except Exception as error:
            self._guard.refuse(source, error)
        self._final.discard(request.number)
        self._ended(request)

    def last(self, request: Request) -> None:
        """Send the final response of a request whose last token did not carry the final flag."""
        if request.end is End.CANCELLED:
            send_tokens(request.source, [], [], last=False, final=True)
            return
        if self.decoupled and request.streaming:
            send_tokens(request.source, [], [], last=True)
            return
        log_probs = join_token_texts(request.scored.of(request.output)) if request.scored else ""
        send_tokens(request.source, request.prompt + request.output, [], last=True, log_probs=log_probs)

    def refuse(self, number: int, error: Exception) -> None:
        """Send an error as the final response of a request that was not submitted."""
        if source := self._open.pop(number, None):
            self._guard.refuse(source, error)

    def refuse_all(self, error: Exception) -> None:
        """Send an error as the final response of every request that has none."""
        for number in list(self._open):
            self.refuse(number, error)

    def confirm(self, number: int) -> None:
        """Send an empty final response: what the request asked for is done."""
        source = self._open.pop(number)
        try:
            send_tokens(source, [], [], last=True)
        except Exception as error:
            self._guard.refuse(source, error)


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
