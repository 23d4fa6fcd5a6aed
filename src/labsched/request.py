"""A request as the scheduler knows it, how its tokens are chosen, and how it ended."""

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

DEFAULT_PRIORITY = 2  # of 1, the most urgent, to MOST_PRIORITY
MOST_PRIORITY = 9


@dataclass(frozen=True, slots=True)
class Sampling:
    """How its tokens are chosen, in TensorRT-LLM's terms (vLLM: `SamplingParams`, vllm/sampling_params.py).

    Without `end_id` a sequence runs to its limit.
    """

    sample: bool = False
    temperature: float = 1.0
    top_k: int = 0  # 0: off
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    min_length: int = 0
    seed: int = 0
    end_id: int | None = None

    @property
    def resumable(self) -> bool:
        """Whether an engine that gets the answer so far as a prompt continues as if it had made the answer itself.

        It does not know the state of the random generator, nor which tokens a penalty on the answer alone applies to.
        """
        return not self.sample and not self.presence_penalty

    def after(self, made: int) -> "Sampling":
        """The same for an answer that already has `made` tokens."""
        return replace(self, min_length=max(0, self.min_length - made)) if made and self.min_length else self


class End(Enum):
    """How a request ended (vLLM: `RequestStatus`, vllm/v1/request.py)."""

    DONE = "done"
    CANCELLED = "cancelled"
    FAILED = "failed"


@dataclass(slots=True, eq=False)
class Request:
    """One request: `prompt` ids in, at most `limit` ids out (vLLM: `Request`, vllm/v1/request.py)."""

    id: str
    prompt: list[int]
    limit: int
    sampling: Sampling | None = None
    stop_words: list[list[int]] = field(default_factory=list)
    output: list[int] = field(default_factory=list)
    end: End | None = None
    error: Exception | None = None
    handle: Any = None
    number: int = 0  # given by the caller of `submit`
    name: str = ""  # in the step log; without another one, its id
    tenant: str | None = None  # the user or customer; the order `fair` counts tokens by tenant
    priority: int = DEFAULT_PRIORITY
    came: int = 0  # its place in the order of arrival, from 1
    cached: int = 0  # leading tokens whose keys and values the engine has
    prefill: int = 0  # tokens that it joined the batch with: the engine's prompt
    joined: int | None = None  # its place in the order of joining, from 1; None: it is not in the engine
    found: int = 0  # tokens found in the cache when it was admitted

    def __post_init__(self) -> None:
        self.name = self.name or self.id

    def __deepcopy__(self, _: Any) -> "Request":
        return self  # the copy of an order is about the same requests

    @property
    def ids(self) -> list[int]:
        """The sequence so far."""
        return self.prompt + self.output

    @property
    def tokens(self) -> int:
        return len(self.prompt) + len(self.output)

    @property
    def left(self) -> int:
        """Tokens that the engine has yet to compute for its next one."""
        return self.tokens - self.cached

    @property
    def decodes(self) -> bool:
        """Whether the engine has made a token of it since it joined.

        To the engine a preempted request that returns is a prompt, with the answer so far in it, until all of that is
        computed. It may lack one token alone, but it gets that one after the decoding requests, in its order.
        """
        return 0 < self.prefill < self.tokens

    @property
    def resumable(self) -> bool:
        """Whether it may be preempted: computed again from its tokens so far, it ends as if it had stayed.

        With vLLM's own sampling parameters it may: vLLM keeps the state of its generator.
        """
        return not isinstance(self.sampling, Sampling) or self.sampling.resumable

    @property
    def sampling_left(self) -> Sampling | None:
        """How its next tokens are chosen."""
        return self.sampling and self.sampling.after(len(self.output))

    def take(self, tokens: list[int]) -> tuple[bool, list[int]]:
        """Add new tokens up to the end of one of its stop words: whether there was one, and which were added."""
        if not self.stop_words:
            self.output += tokens
            return False, tokens
        for count, token in enumerate(tokens, 1):
            self.output.append(token)
            if self.ends_with_stop_word:
                return True, tokens[:count]
        return False, tokens

    @property
    def ends_with_stop_word(self) -> bool:
        """Whether the output ends with one of its stop words."""
        return any(self.output[-len(word) :] == word for word in self.stop_words)

    @property
    def why(self) -> str:
        """The step log's word for its end."""
        if self.end is End.DONE:
            return "length" if len(self.output) >= self.limit else "stop"
        return self.end.value if self.end else ""
