"""Between a model and the wire: every request gets its answer or its error, and no error says more than it should."""

import json
import traceback
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import triton_python_backend_utils as pb_utils

from labserve.params import Refusal
from labserve.triton import refuse_request

Item = TypeVar("Item")


class Guard:
    """One of a model's own, made in `initialize`.

    A client gets a foreseen error (`Refusal`) as it is. Any other error becomes "internal error in MODEL (see the
    server's log, entry N)", and the log has the traceback: a client sees neither paths nor Python's words.
    """

    def __init__(self, args: dict[str, str]) -> None:
        self.model = args["model_name"]
        self._required: dict[str, str] = {}  # inputs that must be sent, with type and shape
        for entry in json.loads(args["model_config"])["input"]:
            if not entry.get("optional"):
                kind = entry["data_type"].removeprefix("TYPE_")
                dims = [int(size) for size in entry["dims"]]
                self._required[entry["name"]] = f"{kind} {dims}"
        self._entries = 0  # errors in the server's log

    def check(self, request: Any) -> None:
        """Raises Refusal if a required input is missing: Triton only counts them, whichever they are."""
        for name, expected in self._required.items():
            if pb_utils.get_input_tensor_by_name(request, name) is None:
                raise Refusal(f"{name}: it is missing; expected {expected}, the batch dimension not counted")

    def words(self, error: Exception) -> str:
        """The message that a client gets for an error."""
        if isinstance(error, Refusal):
            return str(error)
        self._entries += 1
        message = f"internal error in {self.model} (see the server's log, entry {self._entries})"
        pb_utils.Logger.log_error(f"{message}\n{''.join(traceback.format_exception(error))}")
        return message

    def refuse(self, request: Any, error: Exception) -> None:
        """Answer a request with an error, its last answer. If it cannot be sent either, only the log has it."""
        words = self.words(error)
        try:
            refuse_request(request, words)
        except Exception as failed:
            pb_utils.Logger.log_error(f"{self.model} could not send an error ({words}): {failed}")

    def failed(self, error: Exception) -> Any:
        """The response with an error's message."""
        return pb_utils.InferenceResponse(error=pb_utils.TritonError(self.words(error)))

    def read(self, requests: Sequence[Any], read: Callable[[Any], Item]) -> tuple[list[Any], list[tuple[int, Item]]]:
        """The result of `read` for each request: a response for each failure (None for the others), and the good items.

        The good ones come as (place in `requests`, what was read).
        """
        responses: list[Any] = [None] * len(requests)
        good = []
        for place, request in enumerate(requests):
            try:
                self.check(request)
                good.append((place, read(request)))
            except Exception as error:
                responses[place] = self.failed(error)
        return responses, good

    def each(self, requests: Sequence[Any], answer: Callable[[Any], list[Any]]) -> list[Any]:
        """A response for each request, by itself: `answer` gives its tensors."""
        responses, good = self.read(requests, answer)
        for place, tensors in good:
            responses[place] = pb_utils.InferenceResponse(tensors)
        return responses
