"""The scheduler with a policy's answers, each checked: in a replay, and on a server (:mod:`labkit.predict.served`)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Protocol

from labkit.predict.audit import ANSWER, PROMPT
from labkit.predict.policy import Foul, Player
from labsched.plan import StepPlan
from labsched.request import Request
from labsched.scheduler import Scheduler
from labsched.step import Step


class Course(Protocol):
    """How far a game is."""

    steps: int
    now: float  # seconds of virtual time

    @property
    def arrived(self) -> Mapping[str, float]:
        """When each request came, in virtual time."""


class Refereed(Scheduler):
    """The scheduler with a policy's answers, each checked: nothing is lost, and no memory or slot is made up."""

    player: Player | None = None  # none: the shipped answers
    course: Course
    served: dict[str, int]  # by tenant
    again: dict[str, int]  # how often each request was preempted

    def begin(self, player: Player, course: Course) -> None:
        self.player, self.course = player, course
        self.served, self.again = defaultdict(int), defaultdict(int)
        self._line: list[Request] | None = None

    def plan(self) -> StepPlan:
        self._line = None
        return super().plan()

    def step(self, plan: StepPlan | None = None) -> Step:
        step = super().step(plan)
        if self.player:
            self._account(step)
        return step

    def _account(self, step: Step) -> None:
        for request in step.preempted:
            self.again[request.name] += 1
        for request, letter, tokens in zip(step.batch, step.phase, step.computed, strict=True):
            self.served[request.tenant] += PROMPT * tokens * (letter == "p")
        for request, new in step.produced:
            self.served[request.tenant] += ANSWER * len(new)

    def _answers(self, question: str) -> bool:
        return self.player is not None and question in self.player.answers

    @property
    def places(self) -> int:
        free = super().places
        if not self._answers("places"):
            return free
        places = self._number("places")
        if places > free:
            raise Foul("places", f"it gives {places} places, and {free} are free")
        return places

    def line(self) -> list[Request]:
        if not self._answers("line"):
            return super().line()
        if self._line is None:  # asked once a step: who has joined since is left out
            names = self._ask("line")
            by_name = {request.name: request for request in self.waiting}
            if not isinstance(names, list) or any(not isinstance(name, str) for name in names):
                raise Foul("line", "it is not a list of names (request.id)")
            if len(set(names)) < len(names):
                raise Foul("line", "a request stands in it twice")
            if strange := [name for name in names if name not in by_name]:
                raise Foul("line", f"request {strange[0]} does not wait")
            first = [by_name[name] for name in names]
            self._line = [*first, *(request for request in self.waiting if request.name not in set(names))]
        return [request for request in self._line if request in self.waiting]

    def reserve(self) -> int:
        return self._number("reserve") if self._answers("reserve") else super().reserve()

    def victim(self) -> Request:
        if not self._answers("victim"):
            return super().victim()
        name = self._ask("victim")
        for request in self.running:
            if request.name == name:
                return request
        raise Foul("victim", f"request {name} does not run")

    def _number(self, question: str) -> int:
        answer = self._ask(question)
        if not isinstance(answer, int) or isinstance(answer, bool) or answer < 0:
            raise Foul(question, f"{answer!r} is not a whole number of at least 0")
        return answer

    def _ask(self, question: str) -> Any:
        assert self.player
        memory = self.memory  # a request that joins in this plan has the tokens that it finds
        view = {
            "step": self.course.steps,
            "ms": self.course.now * 1e3,
            "waiting": [self._copy(request, memory.cached_tokens(request)) for request in self.waiting],
            "running": [self._copy(request, request.tokens - memory.left(request)) for request in self.running],
            "slots": self.max_running,
            "blocks": self.kv.blocks,
            "blocks_used": self.blocks_used,
            "block_size": self.kv.block_size,
            "step_tokens": self.engine.step_tokens,
            "served": dict(self.served),
        }
        return self.player.ask(question, view)

    def _copy(self, request: Request, cached: int) -> dict[str, Any]:
        return {
            "id": request.name,
            "tenant": request.tenant,
            "priority": request.priority,
            "prompt": len(request.prompt),
            "limit": request.limit,
            "made": len(request.output),
            "cached": cached,
            "came": request.came,
            "came_ms": self.course.arrived.get(request.name, self.course.now) * 1e3,
            "overtaken": self.order.overtaken.get(request, 0),
            "preempted": self.again[request.name],
        }
