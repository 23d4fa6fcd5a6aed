"""The exam of a scheduler: its goodput on four public loads, beside three others, by the replay.

The scheduler is a learner's ``scheduler.py``; it runs in a process of its own, which calls :func:`goodputs`.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from labkit.evidence.bounds import PlayingField
from labsched.costs import StepCosts
from labsched.own import scheduler_beside, with_line
from labsched.policy import Policy
from labsched.replay.counted_time import time_by
from labsched.replay.figures import figures
from labsched.replay.player import Replay, scheduler_of
from labsched.replay.recording import Arrival
from labsched.replay.slo import Slo
from labsched.scheduler import Scheduler

REQUESTS = 96
FIELD = PlayingField(slots=32, blocks=96, block_size=32, step_tokens=256)
COST = StepCosts(step=0.010, decoding=0.0005, token=0.0003)  # seconds, as of a small model on a processor
SLO = Slo(ttft=1000, tpot=50)
TRACE = "labs/shared/traces/mooncake-conversation.jsonl"  # of a checkout
SHORTER, SLOWER, LONGEST = 32, 2, 1500  # the trace is of a large model on many servers


class VllmsRules(Scheduler):
    """Admits as long as blocks are free, as vLLM does: nothing is held back for those that run."""

    def reserve(self) -> int:
        return 0


LOADS = ("stories", "articles", "flood", "conversation")
# Each with the settings in which it differs, and who decides.
RIVALS: Mapping[str, tuple[Mapping[str, str], type[Scheduler]]] = {
    "first come, first served": ({"batch_scheduler_policy": Policy.GUARANTEED_NO_EVICT.value}, Scheduler),
    "vLLM's rules": ({}, VllmsRules),
    "ours": ({"scheduling": "fair"}, Scheduler),
}


def goodputs(root: str, folder: str) -> Any:
    """The good requests per second of ``folder/scheduler.py`` on each load, by its name; else the ``error`` of it.

    Args:
        root: the checkout, whose public trace is one of the loads.
    """
    try:
        return _goodputs(Path(root), {}, scheduler_beside(Path(folder)))
    except Exception as error:
        return {"error": str(with_line(error, Path(folder)))}


def rivals(root: Path) -> Iterator[tuple[str, Mapping[str, float]]]:
    """Each rival's name, and its good requests per second on each load; ``root`` is the checkout."""
    for name, (words, kind) in RIVALS.items():
        yield name, _goodputs(root, words, kind)


def _goodputs(root: Path, words: Mapping[str, str], kind: type[Scheduler]) -> Mapping[str, float]:
    loads = (_stories(), _articles(), _flood(), _conversation(root / TRACE))
    return {name: _goodput([*arrivals], words, kind) for name, arrivals in zip(LOADS, loads, strict=True)}


def _goodput(arrivals: Sequence[Arrival], words: Mapping[str, str], kind: type[Scheduler]) -> float:
    scheduler = scheduler_of(FIELD.settings(arrivals, words), kind)
    played = Replay(scheduler, arrivals, time_by(COST))
    return figures(played.run(), played.arrived, SLO)["goodput_per_s"]


def _drawn(rng: random.Random, mean: float, sigma: float, most: int) -> int:
    """Lognormal, with this mean before it is cut."""
    return max(1, min(most, round(rng.lognormvariate(math.log(mean) - sigma**2 / 2, sigma))))


def _request(number: int, at: float, prompt: int, made: int, limit: int, tenant: str | None = None) -> Arrival:
    by_itself = made < limit
    why = "stop" if by_itself else "length"
    return Arrival(str(number), at, 0, prompt, limit, made, why, word=by_itself, tenant=tenant)


def _stories() -> Iterator[Arrival]:
    """Short prompts, and long answers that outgrow the memory."""
    rng, at = random.Random("stories"), 0.0
    for number in range(REQUESTS):
        yield _request(number, at, _drawn(rng, 40, 0.4, 90), _drawn(rng, 190, 0.4, 320), 320)
        at += rng.expovariate(5.0)


def _articles() -> Iterator[Arrival]:
    """Long prompts with short answers among chat."""
    rng, at = random.Random("articles"), 0.0
    for number in range(REQUESTS):
        long = rng.random() < 0.25
        prompt = _drawn(rng, 900, 0.4, 1800) if long else _drawn(rng, 60, 0.4, 200)
        yield _request(number, at, prompt, _drawn(rng, 40, 0.4, 120), 128)
        at += rng.expovariate(4.5)


def _flood() -> Iterator[Arrival]:
    """One tenant sends half of all requests at once; another one's come one by one."""
    rng, at = random.Random("flood"), 0.0
    for number in range(REQUESTS // 2):
        yield _request(number, 0.0, _drawn(rng, 120, 0.5, 400), _drawn(rng, 80, 0.5, 200), 200, "flood")
    for number in range(REQUESTS // 2, REQUESTS):
        at += rng.expovariate(4.0)
        yield _request(number, at, _drawn(rng, 60, 0.5, 200), _drawn(rng, 20, 0.5, 60), 64, "light")


def _conversation(trace: Path) -> Iterator[Arrival]:
    """The beginning of Mooncake's public trace of a chat service, scaled to this engine."""
    with trace.open(encoding="utf-8") as lines:
        for number, line in enumerate(islice(lines, REQUESTS)):
            row = json.loads(line)
            prompt = min(LONGEST, max(1, row["input_length"] // SHORTER))
            made = max(1, row["output_length"] // (SHORTER // 8))
            yield _request(number, row["timestamp"] / 1000 * SLOWER, prompt, made, made)
