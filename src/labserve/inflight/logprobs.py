"""Log probabilities of the tokens of ``tensorrt_llm``, for requests with the parameter `logprobs`.

vLLM returns them. OpenVINO GenAI keeps its scores to itself: there the same model reads the request's tokens once more,
in a pass of their own, so the numbers are those before temperature, penalties and cuts whatever the request samples.
"""

from collections.abc import Callable, Sequence
from typing import Any

from tokenizers import Tokenizer

from labsched.request import Request
from labserve.codegen.batch_decoder import OpenVinoDecoder
from labserve.params import BadInput
from labserve.processor import threads_of
from labserve.text.logprobs import LOGPROBS, as_json, log_probs
from labserve.text.prompts import find_tokenizer


class LogProbs:
    """The source of log probabilities in a model instance. Nothing is loaded before the first request that asks.

    Args:
        word: a parameter of the model's config.pbtxt, "" if there is none.
    """

    def __init__(self, word: Callable[[str], str]) -> None:
        self._engine, self._folder = word("engine") or "openvino", word("gpt_model_path")
        self._threads, self._exact = word("threads"), word("exact").lower() == "true"
        self._tokenizer: Tokenizer | None = None
        self._reader: OpenVinoDecoder | None = None

    def open(self, request: Request, rivals: int) -> "RequestScores":
        """The scorer of a request that wants as many likely tokens beside its own. Raises BadInput: it cannot be."""
        if self._engine not in ("openvino", "vllm"):
            raise BadInput(LOGPROBS, f"engine={self._engine} gives no log probabilities; engine=openvino and vllm do")
        self._tokenizer = self._tokenizer or find_tokenizer(self._folder)
        if self._tokenizer is None:
            raise BadInput(LOGPROBS, f"{self._folder} has no tokenizer that spells the tokens")
        if self._engine == "vllm":
            return RequestScores(rivals, self._tokenizer)
        if self._reader is None:
            threads = threads_of(int(self._threads), self._folder)
            self._reader = OpenVinoDecoder(self._folder, threads, self._exact)
        return _Computed(rivals, self._tokenizer, request.prompt, self._reader.another())


class RequestScores:
    """Log probabilities of one request, from the engine itself, which adds those of new tokens to `scores`."""

    def __init__(self, rivals: int, tokenizer: Tokenizer) -> None:
        self.rivals, self._tokenizer = rivals, tokenizer
        self.scores: list[Any] = []

    def of(self, tokens: Sequence[int]) -> list[str]:
        """One JSON text for each of the request's next tokens: vllm_backend's form."""
        return [as_json(self._of(token), self._tokenizer) for token in tokens]

    def _of(self, token: int) -> Any:
        """The log probabilities of the token and its rivals, by id."""
        return self.scores.pop(0)


class _Computed(RequestScores):
    """Log probabilities of one request, by a pass over each of its tokens; `reader` is its own."""

    def __init__(self, rivals: int, tokenizer: Tokenizer, prompt: list[int], reader: OpenVinoDecoder) -> None:
        super().__init__(rivals, tokenizer)
        self._prompt, self._reader = prompt, reader
        self._last: int | None = None  # the token before, which the reader has not read yet

    def _of(self, token: int) -> Any:
        if self._last is None:
            scores = self._reader.begin([self._prompt])
        else:
            scores = self._reader.step([0], [self._last])
        self._last = token
        return log_probs(scores[0], token, self.rivals)
