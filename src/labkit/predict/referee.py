"""A policy against a trace, in virtual time: the real scheduler asks it four questions, and checks each answer.

The policy is a file with any of `places`, `line`, `reserve` and `victim`, each a function of a view. It runs in a
process of its own (:mod:`labkit.predict.player`) and gets copies of what a server knows: an answer's length is not
among them. The time of a step is that of the model of a GPU (:mod:`labsched.pace`).
"""

from __future__ import annotations

import ctypes
import functools
import math
import multiprocessing
import signal
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from labkit.contention import own_processors
from labkit.errors import LabError
from labkit.predict.audit import audit, service_gap, worst_slowdown
from labkit.predict.field import FIELD, PlayingField
from labkit.predict.player import PR_SET_PDEATHSIG
from labkit.predict.policy import Foul, Player
from labkit.predict.refereed import Refereed
from labsched.figures import figures
from labsched.recording import Arrival, StepRow
from labsched.replay import Replay, scheduler_of
from labsched.slo import Slo

STEP_S = 1e-3  # processor time that a policy may take for a step, on average
LONGEST = 30  # steps, as a multiple of what one request after the other would take
TOO_LONG = "it is not done after {:,} steps; one request after the other needs fewer"
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


@dataclass(frozen=True)
class Game:
    """A game that was played to its end. ``after``: how many steps were over when each request came."""

    rows: Sequence[StepRow]
    after: Mapping[str, int]
    figures: dict[str, float]


def play_trace(policy: Player, arrivals: Sequence[Arrival], ground: PlayingField = FIELD) -> dict[str, float]:
    """The figures of one game. See :func:`game`."""
    return game(policy, arrivals, ground).figures


def game(policy: Player, arrivals: Sequence[Arrival], ground: PlayingField) -> Game:
    """One game in virtual time.

    Raises:
        Foul: the policy is disqualified.
    """
    scheduler = scheduler_of(ground.settings(arrivals), Refereed)
    assert isinstance(scheduler, Refereed)
    most, time, asked = most_steps(arrivals, ground), ground.step_time(), policy.seconds

    def seconds(row: StepRow) -> float:
        if len(course.rows) > most:
            raise Foul("starves", TOO_LONG.format(most))
        return time(row)

    course = Replay(scheduler, arrivals, seconds)
    scheduler.begin(policy, course)
    try:
        course.run()
    except LabError as error:
        raise Foul("starves", str(error)) from error
    judged = verdict(course.rows, arrivals, ground, policy.seconds - asked)
    return Game(course.rows, course.after, judged)


def retime_steps(rows: Sequence[StepRow], arrivals: Sequence[Arrival], ground: PlayingField) -> None:
    """Give the steps of a server the times that they take on the GPU, and begin each after its requests came."""
    at, time, now = {arrival.name: arrival.at for arrival in arrivals}, ground.step_time(), 0.0
    for row in rows:
        row.began = max([now, *(at[name] for name in (*row.joined, *row.waiting))])
        row.over = now = row.began + time(row)


def most_steps(arrivals: Sequence[Arrival], ground: PlayingField) -> int:
    """The number of steps after which a game is stopped."""
    return LONGEST + LONGEST * sum(ground.alone(arrival)[0] for arrival in arrivals)


def verdict(
    rows: Sequence[StepRow], arrivals: Sequence[Arrival], ground: PlayingField, seconds: float
) -> dict[str, float]:
    """The figures of COLUMNS and those of :func:`figures`; ``seconds``: processor time that the policy took.

    Raises:
        Foul: the policy is disqualified for what it did in the whole game.
    """
    audit(rows, arrivals, ground)
    if (mean := seconds / len(rows)) > STEP_S:
        raise Foul("slow", f"it takes {mean * 1e3:.1f} ms of a step, of at most {STEP_S * 1e3:g}")
    arrived = {arrival.name: arrival.at for arrival in arrivals}
    judged = figures(rows, arrived, SLO)
    judged["service_gap"] = service_gap(rows, {arrival.name: arrival.tenant for arrival in arrivals})
    judged["worst_slowdown"] = worst_slowdown(rows, arrived, arrivals, ground)
    return judged


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


def judge_policy(path: Path, traces: Mapping[str, Sequence[Arrival]]) -> Standing:
    """All games of a policy; the first foul ends them.

    Raises:
        LabError: there is no such file.
    """
    if not path.is_file():
        raise LabError(
            f"there is no policy {path}", "", "labctl arena list shows the shipped policies", code="policy-unknown"
        )
    games: dict[str, Mapping[str, float]] = {}
    name = ""
    try:
        with Player(path) as policy:
            for name, arrivals in traces.items():
                games[name] = play_trace(policy, arrivals)
    except Foul as foul:
        return Standing(path.stem, games, foul.word, str(foul), name)
    return Standing(path.stem, games)


def _worker() -> None:
    """Ctrl-C is the referee's to hear; a worker ends with it, however it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def judge_all(paths: Sequence[Path], traces: Mapping[str, Sequence[Arrival]]) -> Iterator[Standing]:
    """The standing of each policy, in order. Policies are judged in parallel, one per processor.

    Raises:
        LabError: there is no such file.
    """
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(own_processors(), context, _worker) as pool:
        yield from pool.map(functools.partial(judge_policy, traces=traces), paths)
