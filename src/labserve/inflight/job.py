"""What the scheduler deals with: jobs, the engine that computes them, and the account of one step."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

DEFAULT_PRIORITY = 2  # of 1, the most urgent, to MOST_PRIORITY
MOST_PRIORITY = 9


class End(Enum):
    """Why a job is over."""

    DONE = "done"
    CANCELLED = "cancelled"
    FAILED = "failed"


@dataclass(slots=True, eq=False)
class Job:
    """One request: `prompt` ids in, at most `limit` ids out. `sampling` is the engine's own affair."""

    id: str
    prompt: list[int]
    limit: int
    sampling: Any = None
    stop_words: list[list[int]] = field(default_factory=list)
    streaming: bool = False
    request: Any = None  # whoever submitted it finds it here again
    output: list[int] = field(default_factory=list)
    end: End | None = None
    error: Exception | None = None
    handle: Any = None
    number: int = 0  # whoever submitted it counts
    name: str = ""  # in the step log
    tenant: str = ""  # whose it is, where tenants share the engine fairly
    priority: int = DEFAULT_PRIORITY
    came: int = 0  # order of arrival
    overtaken: int = 0  # how many that came later have joined before it
    charged: bool = False  # its tenant's counter has its prompt
    cached: int = 0  # leading tokens whose keys and values the engine has
    found: int = 0  # of those, how many were there already when it joined

    @property
    def tokens(self) -> int:
        return len(self.prompt) + len(self.output)

    @property
    def left(self) -> int:
        """Tokens that the engine has yet to compute for its next one."""
        return self.tokens - self.cached

    def take(self, tokens: list[int]) -> tuple[bool, list[int]]:
        """Add new tokens up to the end of one of its stop words: whether there was one, and which were added."""
        for count, token in enumerate(tokens, 1):
            self.output.append(token)
            if any(self.output[-len(word) :] == word for word in self.stop_words):
                return True, tokens[:count]
        return False, tokens

    @property
    def why(self) -> str:
        """The step log's word for its end."""
        if self.end is End.DONE:
            return "length" if len(self.output) >= self.limit else "stop"
        return self.end.value if self.end else ""


class Engine(Protocol):
    """A compiled model with a paged KV cache that takes newcomers at any step.

    A step computes at most `step_tokens` tokens: one for each that decodes, and prompts, in order, with the rest.
    """

    step_tokens: int

    def add(self, ids: list[int], limit: int, sampling: Any) -> Any:
        """Begin a sequence: at most `limit` tokens after `ids`. Returns a handle."""

    def step(self) -> None:
        """One step for every sequence: a token each, or a part of a newcomer's prompt."""

    def read(self, handle: Any) -> tuple[list[int], bool]:
        """The new tokens of a sequence, and whether the engine has ended it."""

    def drop(self, handle: Any) -> None:
        """Forget a sequence; its memory is free after the next step, unless it `lingers`."""

    def lingers(self, handle: Any) -> bool:
        """Whether a dropped sequence has to be computed a little further first."""

    def guesses(self, ids: Sequence[int], left: int) -> int:
        """How many tokens after `ids` it will guess in a step, of a sequence that may have `left` more."""


@dataclass(slots=True)
class Turn:
    """What one step did. Lists of numbers are in the order of `batch`."""

    batch: list[Job]
    prefill: int = 0  # members without an output token before the step
    admitted: list[Job] = field(default_factory=list)
    preempted: list[Job] = field(default_factory=list)
    blocks: int = 0  # of the KV cache that were occupied or promised while it was computed
    claims: list[int] = field(default_factory=list)  # those of each
    seats: list[int] = field(default_factory=list)
    computed: list[int] = field(default_factory=list)  # tokens; a newcomer's prompt may go in parts
    cached: list[int] = field(default_factory=list)  # tokens that a newcomer found in the cache
    guessed: list[int] = field(default_factory=list)  # of the computed ones; where the engine guesses
    accepted: list[int] = field(default_factory=list)  # of the guessed ones
    phase: str = ""  # a letter each: p prefill, d decode
    waiting: list[Job] = field(default_factory=list)  # while it was computed
    why: str = ""  # they wait
    engine_s: float = 0.0  # seconds that the engine computed
    produced: list[tuple[Job, list[int]]] = field(default_factory=list)
    ended: list[Job] = field(default_factory=list)
