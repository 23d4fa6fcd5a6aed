"""How requests are answered: piece by piece, or whole at their ends. Each kind of model has its own way."""

from typing import Any

from labserve.guard import Guard
from labserve.triton import respond


class Answers:
    """Answers nothing by itself: the model's `execute` returns the answers (CodeGen).

    A response that cannot be sent concerns its own request alone. The counterpart in vLLM V1 is `OutputProcessor`
    (vllm/v1/engine/output_processor.py).
    """

    decoupled = True  # whether a request may have several responses, so that `execute` returns none

    def stream(self, request: Any, tokens: Any) -> None:
        """Send what is new of an answer; the last response carries the final flag. Raises what sending raises."""

    def finish(self, request: Any) -> None:
        """Send the final response of a request that has ended, unless it has had one."""


class SentAnswers(Answers):
    """Answers that are sent from here: `piece` for new tokens, `last` where they did not carry the final flag."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._final: set[Any] = set()  # requests whose last token carried the final flag, until they are finished

    def finish(self, request: Any) -> None:
        try:
            if request.error:
                raise request.error
            if request not in self._final:
                self.last(request)
        except Exception as error:
            self._guard.refuse(request.source, error)
        self._final.discard(request)

    def last(self, request: Any) -> None:
        """Send the final response of a request whose last token did not carry the final flag."""
        raise NotImplementedError


class PieceAnswers(SentAnswers):
    """A response for each piece of text that a step has made."""

    def stream(self, request: Any, tokens: Any) -> None:
        respond(request.source, request.piece, last=request.finished, **self.outputs(request))
        if request.finished:
            self._final.add(request)

    def last(self, request: Any) -> None:
        respond(request.source, "", last=True)

    def outputs(self, request: Any) -> dict[str, str]:
        """The outputs beside the text; an empty one is left out."""
        return {}
