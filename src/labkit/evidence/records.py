"""One request as it was seen from outside: when it was sent, when each response came, how it ended."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from labsched.step import Step

_numbers = itertools.count(random.randrange(1, 10**6) * 1000 + 1)


def request_id() -> str:
    """The next request id of this process: "417001", "417002", ... from a random thousand on.

    An ensemble hands its request's id on, and a step log names requests by it: two clients must not choose the same.
    """
    return str(next(_numbers))


@dataclass
class RequestRecord:
    """Times are ``time.monotonic()`` seconds; ``responses`` holds (arrival, text), one per token when streaming.

    Metric names and formulas are those of NVIDIA's AIPerf and GenAI-Perf. TPOT and ITL are vLLM's: AIPerf calls a
    request's mean "inter token latency".

    Attributes:
        label: the request's name among those of its run.
        id: what Triton and the step logs call it; "" until it is sent with one.
        finish_reason: why the answer ended, in the model's words ("length", "stop"); "" if it does not say.
    """

    label: str
    model: str
    prompt: str
    parameters: dict[str, Any] = field(default_factory=dict)
    start: float = 0.0
    responses: list[tuple[float, str]] = field(default_factory=list)
    end: float = 0.0
    error: str = ""
    input_tokens: int = 0
    id: str = ""
    finish_reason: str = ""
    due: float | None = None  # when an open loop should have sent it
    tokens: int = 0  # output tokens where a response may hold several; 0: one response is one token

    @property
    def text(self) -> str:
        return "".join(text for _, text in self.responses)

    @property
    def output_tokens(self) -> int:
        return self.tokens or len(self.responses)

    @property
    def ok(self) -> bool:
        return not self.error and bool(self.responses)

    @property
    def ttft_ms(self) -> float:
        """time_to_first_token: first response - request start."""
        return (self.responses[0][0] - self.start) * 1e3

    @property
    def latency_ms(self) -> float:
        """request_latency: last response - request start."""
        return (self.responses[-1][0] - self.start) * 1e3

    @property
    def tpot_ms(self) -> float:
        """time_per_output_token: (request_latency - time_to_first_token) / (output tokens - 1); 0 for one token."""
        return (self.latency_ms - self.ttft_ms) / (self.output_tokens - 1) if self.output_tokens > 1 else 0.0

    @property
    def itl_ms(self) -> list[float]:
        """inter_token_latency: each gap between two responses; one gap fewer than there are responses."""
        return [(after[0] - before[0]) * 1e3 for before, after in itertools.pairwise(self.responses)]

    @property
    def span(self) -> tuple[float, float]:
        """From the first to the last token."""
        return self.responses[0][0], self.responses[-1][0]

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "tokens": self.output_tokens}


def token_overlap(first: RequestRecord, second: RequestRecord) -> float:
    """The share of both requests' tokens that came while both were being answered: counted, not timed."""
    began, ended = max(first.span[0], second.span[0]), min(first.span[1], second.span[1])
    times = [at for record in (first, second) for at, _ in record.responses]
    return sum(began <= at <= ended for at in times) / len(times)


@dataclass(frozen=True)
class Lane:
    """The records and steps that a picture or a trace draws under one title. Times are ``time.monotonic()`` seconds."""

    title: str
    records: Sequence[RequestRecord]
    steps: Sequence[Step]

    def to_json(self) -> dict[str, Any]:
        """All but the title, which is the report's affair."""
        return {
            "records": [record.to_json() for record in self.records],
            "steps": [step.to_json() for step in self.steps],
        }

    @classmethod
    def from_json(cls, title: str, data: Mapping[str, Any]) -> Lane:
        """The lane that ``to_json`` wrote; other keys of ``data`` are left alone."""
        return cls(
            title, [RequestRecord(**r) for r in data["records"]], [Step.from_json(step) for step in data["steps"]]
        )
