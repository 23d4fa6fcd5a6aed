"""Which replica gets a request: the one with the highest score, and each score is kept beside the decision.

The router asks no replica. It remembers what it has sent where, as llm-d's prefix scorer does by default
(gateway-api-inference-extension, pkg/epp/scheduling/plugins) and Dynamo's router without KV events. So it can be wrong:
what a replica really found is in its step log (`cached`).
"""

from __future__ import annotations

import hashlib
import threading
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

SIZE = 16  # tokens of a block, as the servers have them


class Candidate(NamedTuple):
    """A replica at the moment when a request comes.

    `prompt`: tokens of the request's prompt; `cached`: how many of them the replica should have. `requests`: sent to
    the replica and not answered yet, with `tokens` uncached prompt tokens. `home`: the request's session belongs to
    this replica. `turn`: the replica is the next one in round-robin order.
    """

    prompt: int
    cached: int
    requests: int
    tokens: int
    home: bool
    turn: bool


Score = Callable[[Candidate], float]
Scores = Callable[[Sequence[Candidate]], Sequence[float]]


def round_robin(candidate: Candidate) -> float:
    """Each replica in turn."""
    return float(candidate.turn)


def affinity(candidate: Candidate) -> float:
    """All requests of a session to one replica."""
    return float(candidate.home)


def least_work(candidate: Candidate) -> float:
    """Where the fewest tokens of prompts are left to compute, its own included (Dynamo: `KvRouter`'s cost)."""
    return float(candidate.cached - candidate.prompt - candidate.tokens)


def score_each(score: Score) -> Scores:
    """The scores of all candidates, each by itself."""
    return lambda candidates: [score(candidate) for candidate in candidates]


POLICIES: dict[str, Score] = {"round robin": round_robin, "affinity": affinity, "least work": least_work}


@dataclass(frozen=True)
class RoutingDecision:
    """Where a request goes, and why: the candidates and their scores, by replica."""

    replica: str
    candidates: dict[str, Candidate]
    scores: dict[str, float]

    def to_json(self) -> dict[str, Any]:
        """For a log: one line a decision."""
        return {
            "replica": self.replica,
            "scores": self.scores,
            "candidates": {name: candidate._asdict() for name, candidate in self.candidates.items()},
        }


@dataclass
class _Replica:
    blocks: OrderedDict[bytes, None] = field(default_factory=OrderedDict)  # the last one was sent last
    requests: int = 0
    tokens: int = 0


class Router:
    """Decides for each request; any thread may ask.

    Args:
        replicas: their names, in a fixed order.
        scores: of the candidates; where several have the highest, the one with fewer requests gets it, then the first.
        kept_blocks: how many blocks a replica keeps, the one that was used longest ago goes first.
    """

    def __init__(self, replicas: Sequence[str], scores: Scores, kept_blocks: int) -> None:
        self._replicas = {name: _Replica() for name in replicas}
        self._scores, self._most = scores, kept_blocks
        self._turn = 0
        self._lock = threading.Lock()

    def choose(self, ids: Sequence[int], session: str = "") -> RoutingDecision:
        """The replica for a prompt of these tokens."""
        keys = list(blocks_of(ids))
        names = list(self._replicas)
        home = names[int.from_bytes(hashlib.sha256(session.encode()).digest()[:8], "big") % len(names)]
        with self._lock:
            candidates = {
                name: Candidate(
                    prompt=len(ids),
                    cached=SIZE * _known(keys, replica),
                    requests=replica.requests,
                    tokens=replica.tokens,
                    home=name == home,
                    turn=place == self._turn,
                )
                for place, (name, replica) in enumerate(self._replicas.items())
            }
            scores = dict(zip(names, map(float, self._scores(list(candidates.values()))), strict=True))
            chosen = max(names, key=lambda name: (scores[name], -candidates[name].requests))
            self._turn = (self._turn + 1) % len(names)
            replica = self._replicas[chosen]
            replica.requests += 1
            replica.tokens += len(ids) - candidates[chosen].cached
        return RoutingDecision(chosen, candidates, scores)

    def answered(self, decision: RoutingDecision, ids: Sequence[int]) -> None:
        """The request has ended; its replica keeps the blocks of `ids`, prompt and answer."""
        with self._lock:
            replica, candidate = self._replicas[decision.replica], decision.candidates[decision.replica]
            replica.requests -= 1
            replica.tokens -= candidate.prompt - candidate.cached
            for key in blocks_of(ids):
                replica.blocks[key] = None
                replica.blocks.move_to_end(key)
            while len(replica.blocks) > self._most:
                replica.blocks.popitem(last=False)


def _known(keys: Sequence[bytes], replica: _Replica) -> int:
    return next((place for place, key in enumerate(keys) if key not in replica.blocks), len(keys))


def blocks_of(ids: Sequence[int]) -> Iterator[bytes]:
    """A digest of all tokens up to the end of each full block."""
    key = b""
    for start in range(0, len(ids) - SIZE + 1, SIZE):
        key = hashlib.sha256(key + array("q", ids[start : start + SIZE]).tobytes()).digest()
        yield key
