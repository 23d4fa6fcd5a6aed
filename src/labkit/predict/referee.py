"""A policy against a trace, in virtual time: the real scheduler asks it four questions, and checks each answer.

The policy is a file with any of `places`, `line`, `reserve` and `victim`, each a function of a view. It runs in a
process of its own (:mod:`labkit.predict.player`) and gets copies of what a server knows: an answer's length is not
among them. The time of a step is that of the model of a GPU (:mod:`labserve.inflight.pace`).
"""

from __future__ import annotations

import itertools
import json
import math
import queue
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labkit.errors import LabError
from labkit.predict import player as script
from labkit.predict.figures import figures
from labkit.predict.recording import Arrival, Row, Settings
from labkit.predict.replay import Replay, scheduler_of
from labkit.predict.steptime import Contexts
from labkit.stats import Slo
from labserve.inflight.pace import DEVICES, SHAPES, Pace, Work
from labserve.inflight.request import Request
from labserve.inflight.scheduler import Scheduler

PATIENCE_S = 10.0  # for one answer
STEP_S = 1e-3  # processor time that a policy may take for a step, on average
OVERTAKEN = 128  # later requests that may go before one; a convoy has 280
LONGEST = 30  # steps, as a multiple of what one request after the other would take
SLO = Slo.parse("ttft<1000ms,tpot<50ms")
PROMPT, ANSWER = 1, 2  # what a token counts of a tenant's service (VTC: Sheng et al., OSDI 2024)
COLUMNS = ("goodput_per_s", "ttft_p99_ms", "recomputed_tokens", "service_gap", "worst_slowdown", "steps")


class Foul(Exception):
    """Why a policy is disqualified: a word for it, and a sentence."""

    def __init__(self, word: str, why: str) -> None:
        super().__init__(why)
        self.word = word


@dataclass(frozen=True)
class Field:
    """What every game is played on: slots, KV blocks and their tokens, and tokens of a step; a GPU's model."""

    slots: int = 32
    blocks: int = 160
    block_size: int = 16
    step_tokens: int = 512
    pace: Pace = field(default_factory=lambda: Pace(DEVICES["h100"], SHAPES["llama-2-7b"], 1.0))

    @property
    def settings(self) -> Settings:
        words = {
            "engine": "openvino",
            "gpt_model_type": "inflight_fused_batching",
            "batch_scheduler_policy": "max_utilization",
            "max_num_sequences": str(self.slots),
            "enable_chunked_context": "true",
            "enable_kv_cache_reuse": "false",
            "scheduling": "fcfs",
        }
        return Settings(words, self.blocks, self.block_size, self.step_tokens, 10**6, 10**6)

    def alone(self, arrival: Arrival) -> tuple[int, float]:
        """Steps and seconds that a request takes with the server to itself."""
        pieces = [
            Work(min(self.step_tokens, arrival.prompt - at), min(at + self.step_tokens, arrival.prompt))
            for at in range(0, arrival.prompt, self.step_tokens)
        ]
        work = [*pieces, *(Work(1, arrival.prompt + made) for made in range(1, arrival.made))]
        return len(work), sum(self.pace.seconds([one]) for one in work)


FIELD = Field()


class Player:
    """The policy's process. Closed by ``with``."""

    def __init__(self, path: Path) -> None:
        command = [sys.executable, "-I", str(Path(script.__file__)), str(path)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env={}
        )
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        self._failed = False
        self.seconds = 0.0  # of processor time, by its own clock
        try:
            self.answers: list[str] = self._reply().get("answers", [])
        except Foul:
            self.close()
            raise

    def _listen(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def __enter__(self) -> Player:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def alive(self) -> bool:
        """Whether it can play on: after a crash, or no answer, it cannot."""
        return not self._failed

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._listener.join()
        assert self._process.stdin and self._process.stdout
        with suppress(BrokenPipeError):  # a question that it did not read
            self._process.stdin.close()
        self._process.stdout.close()

    def ask(self, question: str, view: Mapping[str, Any]) -> Any:
        """Its answer. Raises Foul if it gives none."""
        assert self._process.stdin
        try:
            self._process.stdin.write(json.dumps({"ask": question, "view": view}) + "\n")
            self._process.stdin.flush()
        except OSError:
            raise Foul("crashed", "its process has ended") from None
        said = self._reply()
        self.seconds += float(said.get("seconds", 0.0))
        return said.get("answer")

    def _reply(self) -> dict[str, Any]:
        self._failed, failed = True, self._failed
        if failed:
            raise Foul("crashed", "it has failed before")
        try:
            line = self._lines.get(timeout=PATIENCE_S)
        except queue.Empty:
            raise Foul("hangs", f"no answer within {PATIENCE_S:g} s") from None
        try:
            said = json.loads(line)
        except ValueError:
            said = None
        if not isinstance(said, dict):
            raise Foul("crashed", "its process has ended")
        if "error" in said:
            raise Foul("crashed", f"line {said.get('line', 0)}: {said['error']}")
        self._failed = False
        return said


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
        view = {
            "step": self.replay.steps,
            "ms": self.replay.now * 1e3,
            "waiting": [self._copy(request) for request in self.waiting],
            "running": [self._copy(request) for request in self.running],
            "slots": self.max_running,
            "blocks": self.kv.blocks,
            "blocks_used": self.blocks_used,
            "block_size": self.kv.block_size,
            "step_tokens": self.engine.step_tokens,
            "served": dict(self.served),
        }
        return self.player.ask(question, view)

    def _copy(self, request: Request) -> dict[str, Any]:
        return {
            "id": request.name,
            "tenant": request.tenant,
            "priority": request.priority,
            "prompt": len(request.prompt),
            "limit": request.limit,
            "made": len(request.output),
            "cached": request.cached,
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
    settings = ground.settings
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
    _audit(game.rows, arrivals, ground)
    if (mean := (policy.seconds - asked) / len(game.rows)) > STEP_S:
        raise Foul("slow", f"it takes {mean * 1e3:.1f} ms of a step, of at most {STEP_S * 1e3:g}")
    found = figures(game.rows, game.arrived, SLO)
    found["service_gap"] = service_gap(game.rows, tenants)
    found["worst_slowdown"] = _worst_slowdown(game.rows, game.arrived, arrivals, ground)
    return found


def _audit(rows: Sequence[Row], arrivals: Sequence[Arrival], ground: Field) -> None:
    """What must hold in the end, whoever decided. Raises Foul."""
    came = {arrival.name: number for number, arrival in enumerate(arrivals)}
    made: dict[str, int] = defaultdict(int)
    joined: set[str] = set()
    overtaken: dict[str, int] = defaultdict(int)
    for row in rows:
        assert (sum(row.tokens) <= ground.step_tokens and row.blocks <= ground.blocks) or len(row.batch) == 1
        assert len(row.batch) <= ground.slots
        for name in row.joined:
            if name not in joined:  # the first time
                joined.add(name)
                for other in row.waiting:
                    overtaken[other] += other not in joined and came[other] < came[name]
        for name, count in zip(row.batch, row.made, strict=True):
            made[name] += count
    assert made == {arrival.name: arrival.made for arrival in arrivals}
    name, times = max(overtaken.items(), key=lambda item: item[1], default=("", 0))
    if times > OVERTAKEN:
        raise Foul("starves", f"{times} later requests went before request {name}, of at most {OVERTAKEN}")


def service_gap(rows: Sequence[Row], tenants: Mapping[str, str]) -> float:
    """How far two tenants got apart in service while both waited, in counted tokens; 0 with one tenant."""
    served: dict[str, int] = defaultdict(int)
    worst = 0
    for one, other in itertools.combinations(sorted(set(tenants.values())), 2):
        least = most = apart = 0
        for row in rows:
            if not {one, other} <= {tenants[name] for name in row.waiting}:
                least = most = apart = 0
                continue
            served.clear()
            for name, letter, tokens, made in zip(row.batch, row.phase, row.tokens, row.made, strict=True):
                served[tenants[name]] += PROMPT * tokens * (letter == "p") + ANSWER * made
            apart += served[one] - served[other]
            least, most = min(least, apart), max(most, apart)
            worst = max(worst, apart - least, most - apart)
    return float(worst)


def _worst_slowdown(
    rows: Sequence[Row], arrived: Mapping[str, float], arrivals: Sequence[Arrival], ground: Field
) -> float:
    """The longest time that a request took, as a multiple of what it takes with the server to itself."""
    ended = {name: row.over for row in rows for name in row.ended}
    return max((ended[one.name] - arrived[one.name]) / ground.alone(one)[1] for one in arrivals)


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
        return math.fsum(values) if column in ("recomputed_tokens", "steps") else max(values)


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
