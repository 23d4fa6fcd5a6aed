"""A policy against a trace, in virtual time: the real scheduler asks it four questions, and checks each answer.

The policy is a file with any of `places`, `line`, `reserve` and `victim`, each a function of a view. It runs in a
process of its own (:mod:`labkit.predict.player`) and gets copies of what a server knows: an answer's length is not
among them. The time of a step is that of the model of a GPU (:mod:`labserve.inflight.pace`).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.errors import LabError
from labkit.predict.audit import ANSWER, PROMPT, audit, service_gap, worst_slowdown
from labkit.predict.field import FIELD, Field
from labkit.predict.figures import figures
from labkit.predict.policy import Foul, Player
from labkit.predict.recording import Arrival, Row
from labkit.predict.replay import Replay, scheduler_of
from labkit.predict.steptime import Contexts
from labkit.slo import Slo
from labserve.inflight.pace import Work
from labserve.inflight.request import Request
from labserve.inflight.scheduler import Scheduler

STEP_S = 1e-3  # processor time that a policy may take for a step, on average
LONGEST = 30  # steps, as a multiple of what one request after the other would take
SLO = Slo.parse("ttft<1000ms,tpot<50ms")
COLUMNS = (
    "goodput_per_s",
    "ttft_p99_ms",
    "recomputed_tokens",
    "cached_tokens",
    "service_gap",
    "worst_slowdown",
    "steps",
)


class Refereed(Scheduler):
    """The scheduler with a policy's answers, each checked: nothing is lost, and no memory or slot is made up."""

    player: Player
    replay: Replay
    served: dict[str, int]
    again: dict[str, int]  # how often each request was preempted

    def begin(self, player: Player, replay: Replay) -> None:
        self.player, self.replay = player, replay
        self.served, self.again = defaultdict(int), defaultdict(int)
        self._line: list[Request] | None = None

    def plan(self) -> Any:
        self._line = None
        return super().plan()

    @property
    def places(self) -> int:
        free = super().places
        if "places" not in self.player.answers:
            return free
        found = self._number("places")
        if found > free:
            raise Foul("places", f"it gives {found} places, and {free} are free")
        return found

    def line(self) -> list[Request]:
        if "line" not in self.player.answers:
            return super().line()
        if self._line is None:  # asked once a step: who has joined since is left out
            names = self._ask("line")
            by_name = {request.name: request for request in self.waiting}
            if not isinstance(names, list) or any(not isinstance(name, str) for name in names):
                raise Foul("line", "it is no list of names (request.id)")
            if len(set(names)) < len(names):
                raise Foul("line", "a request stands in it twice")
            if strange := [name for name in names if name not in by_name]:
                raise Foul("line", f"request {strange[0]} does not wait")
            first = [by_name[name] for name in names]
            self._line = [*first, *(request for request in self.waiting if request.name not in set(names))]
        return [request for request in self._line if request in self.waiting]

    def reserve(self) -> int:
        return self._number("reserve") if "reserve" in self.player.answers else super().reserve()

    def victim(self) -> Request:
        if "victim" not in self.player.answers:
            return super().victim()
        name = self._ask("victim")
        for request in self.running:
            if request.name == name:
                return request
        raise Foul("victim", f"request {name} does not run")

    def _number(self, question: str) -> int:
        found = self._ask(question)
        if not isinstance(found, int) or isinstance(found, bool) or found < 0:
            raise Foul(question, f"{found!r} is no whole number of at least 0")
        return found

    def _ask(self, question: str) -> Any:
        memory = self.memory  # a request that joins in this plan has the tokens that it finds
        view = {
            "step": self.replay.steps,
            "ms": self.replay.now * 1e3,
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
            "came_ms": self.replay.arrived.get(request.name, self.replay.now) * 1e3,
            "overtaken": request.overtaken,
            "preempted": self.again[request.name],
        }


def play(policy: Player, arrivals: Sequence[Arrival], ground: Field = FIELD) -> dict[str, float]:
    """One game. Returns the figures of COLUMNS and those of :func:`figures`.

    Raises:
        Foul: the policy is disqualified.
    """
    settings = ground.settings(arrivals)
    scheduler = scheduler_of(settings, Refereed)
    assert isinstance(scheduler, Refereed)
    contexts, tenants = Contexts(), {arrival.name: arrival.tenant for arrival in arrivals}
    most = LONGEST + LONGEST * sum(ground.alone(arrival)[0] for arrival in arrivals)
    asked = policy.seconds

    def seconds(row: Row) -> float:
        if len(game.rows) > most:
            raise Foul("starves", f"it is not done after {most:,} steps; one request after the other needs fewer")
        for name in row.preempted:
            scheduler.again[name] += 1
        for name, letter, tokens, made in zip(row.batch, row.phase, row.tokens, row.made, strict=True):
            scheduler.served[tenants[name]] += PROMPT * tokens * (letter == "p") + ANSWER * made
        work = [Work(tokens, seen) for tokens, seen in zip(row.tokens, contexts.each(row), strict=True)]
        return ground.pace.seconds(work)

    game = Replay(scheduler, arrivals, seconds)
    scheduler.begin(policy, game)
    try:
        game.run()
    except LabError as error:
        raise Foul("starves", str(error)) from error
    audit(game.rows, arrivals, ground)
    if (mean := (policy.seconds - asked) / len(game.rows)) > STEP_S:
        raise Foul("slow", f"it takes {mean * 1e3:.1f} ms of a step, of at most {STEP_S * 1e3:g}")
    found = figures(game.rows, game.arrived, SLO)
    found["service_gap"] = service_gap(game.rows, tenants)
    found["worst_slowdown"] = worst_slowdown(game.rows, game.arrived, arrivals, ground)
    return found


@dataclass(frozen=True)
class Standing:
    """A policy after its games: the figures of each by the trace's name, or why it was disqualified, and in which."""

    name: str
    games: Mapping[str, Mapping[str, float]]
    foul: str = ""
    why: str = ""
    trace: str = ""

    def figure(self, column: str) -> float:
        """Over all games: the mean of the goodput, the sum of what is counted, the worst of the others."""
        values = [game[column] for game in self.games.values()]
        if column == "goodput_per_s":
            return sum(values) / len(values)
        return math.fsum(values) if column in ("recomputed_tokens", "cached_tokens", "steps") else max(values)


def judge(
    path: Path, traces: Mapping[str, Sequence[Arrival]], ground: Field = FIELD, tell: Callable[[str], object] = str
) -> Standing:
    """All games of a policy; the first foul ends them. ``tell`` gets the name of each trace.

    Raises:
        LabError: there is no such file.
    """
    if not path.is_file():
        raise LabError(f"there is no policy {path}", "", "labctl arena list shows those that are shipped")
    games: dict[str, Mapping[str, float]] = {}
    name = ""
    try:
        with Player(path) as policy:
            for name, arrivals in traces.items():
                tell(name)
                games[name] = play(policy, arrivals, ground)
    except Foul as foul:
        return Standing(path.stem, games, foul.word, str(foul), name)
    return Standing(path.stem, games)
