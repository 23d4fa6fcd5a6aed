"""The form of a line of the step log, version 2, in types (docs/develop/step-log.md says it in words)."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, model_validator

VERSION = 2

Count = Annotated[int, Field(ge=0)]
Reason = Literal["no slot", "no KV block", "batch closed", "no tokens", "no prefix"]
End = Literal["length", "stop", "client", "cancelled", "idle", "failed", "handed over"]
# One entry per request in the step.
EACH = tuple("rows phase tokens made cached guessed accepted texts blocks block_ids start end".split())


class StepLine(BaseModel):
    """One line. Times are seconds of the monotonic clock; counts of a model's own may stand beside these fields."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)
    __pydantic_extra__: dict[str, int | list[int]]

    v: Literal[2]
    n: Annotated[int, Field(ge=1)]
    t: float
    dur: Annotated[float, Field(ge=0)]
    model: str
    instance: str
    kind: Literal["step", "change"]
    batch: Count
    ids: list[str]

    rows: list[int] | None = None
    phase: Annotated[str, Field(pattern="^[pd]*$")] | None = None
    tokens: list[Count] | None = None
    made: list[Count] | None = None
    cached: list[Count] | None = None
    guessed: list[Count] | None = None
    accepted: list[Count] | None = None
    texts: list[str] | None = None
    blocks: list[Count] | None = None
    block_ids: list[list[int]] | None = None
    start: list[int] | None = None
    end: list[int] | None = None

    waiting: Annotated[list[str], Field(max_length=64)] = []
    queue: Count = 0
    why: Reason | list[Reason] | None = None
    because: dict[str, int] = {}
    joined: list[str] = []
    evicted: list[str] = []
    ended: dict[str, End] = {}
    tenants: dict[str, Count] = {}
    slots: Count | None = None
    slots_used: Count | None = None
    seats: list[str] | None = None
    kv_blocks: Count | None = None
    kv_blocks_used: Count | None = None
    routes: dict[str, dict[str, Any]] = {}
    copied: Count | None = None
    prompts: dict[str, str] = {}
    before: dict[str, str] = {}
    prefill: Count | None = None
    empty: Count | None = None
    engine_us: Count | None = None
    mask_us: Count | None = None
    paced_us: Count | None = None
    ahead_us: Count | None = None
    in_vain: Count | None = None
    warm_up: bool = False
    replica: str = ""

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        if self.batch != len(self.ids):
            raise ValueError(f"batch is {self.batch}, but there are {len(self.ids)} ids")
        if len(set(self.ids)) != len(self.ids):
            raise ValueError(f"a name stands twice in ids: {self.ids}")
        if self.kind == "change" and self.ids:
            raise ValueError("a change has no requests in a step")
        for name in EACH:
            each = getattr(self, name)
            if each is not None and len(each) != self.batch:
                raise ValueError(f"{name} has {len(each)} entries for {self.batch} requests")
        if isinstance(self.why, list) and len(self.why) != len(self.waiting):
            raise ValueError(f"why has {len(self.why)} entries for {len(self.waiting)} that wait")
        if self.queue < len(self.waiting):
            raise ValueError(f"queue is {self.queue}, but {len(self.waiting)} wait")
        if self.seats is not None and self.slots is not None and len(self.seats) != self.slots:
            raise ValueError(f"{len(self.seats)} seats, but slots is {self.slots}")
        return self


class RequestLine(BaseModel):
    """The record of a request that has ended, from which a replay is made; a reader of steps leaves it out."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    v: Literal[2]
    t: float
    model: str
    instance: str
    kind: Literal["request"]
    name: str
    came: Annotated[int, Field(ge=1)]
    arrived: float
    waited: Annotated[float, Field(ge=0)]
    after: Count
    left: Count
    prompt: Annotated[int, Field(ge=1)]
    limit: Annotated[int, Field(ge=1)]
    made: Count
    why: End
    word: bool
    tenant: str | None
    priority: int
    resumable: bool
    prefixes: str


class SchedulerLine(BaseModel):
    """The settings of the scheduler, with which each file of its log begins."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    v: Literal[2]
    t: float
    model: str
    instance: str
    kind: Literal["scheduler"]
    words: dict[str, str]
    context: Count
    vocabulary: Count
    blocks: Count
    block_size: Count
    step_tokens: Count
    own: str | None


LINES: TypeAdapter[StepLine | RequestLine | SchedulerLine] = TypeAdapter(StepLine | RequestLine | SchedulerLine)
