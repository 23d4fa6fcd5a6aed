"""What computes, as a test plays requests on it: engines behind a scheduler, GPT-2's decoders, and CodeGen's.

The kinds differ in who chooses the batch of a step. An `Engine` computes whatever was added, a model.py names the
sequences of each step of GPT-2, and a batch of CodeGen's begins together.
"""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple

import labserve_tiny

from labsched.features import DRAFT, NONE, PROMPT_LOOKUP, Features
from labsched.kv_budget import KVBudget
from labsched.order import ORDERS, order
from labsched.policy import Policy
from labsched.request import Request, Sampling
from labsched.scheduler import Scheduler
from labsched.step import Step
from labserve.codegen.request import TextRow, advance
from labserve.text.sampling import Sampler

SLOTS, DRAFTS, MOST_STEPS = 4, 3, 5000
GREEDY, PLAIN = Sampling(), Features()
Held = Callable[[Any], int]  # the requests, slots or blocks that are not free in what computes
_numbers = itertools.count(1)


@dataclass(eq=False)
class Asked:
    """A request, the steps before which it comes and leaves, and what became of it."""

    prompt: list[int]
    limit: int
    at: int = 0
    leaves: int | None = None
    sampling: Sampling = GREEDY
    output: list[int] = field(default_factory=list)
    error: Exception | None = None

    def has_left(self, turn: int) -> bool:
        return self.leaves is not None and self.leaves <= turn


def alone(kind: Any, asked: Sequence[Asked]) -> list[list[int]]:
    """What it answers to each request when no other is there."""
    copies = [replace(one, at=0, leaves=None, output=[]) for one in asked]
    kind.play(copies, slots=1)
    return [one.output for one in copies]


class Played(NamedTuple):
    """What was seen of a play: the tokens that requests found in the cache, and how many were preempted."""

    found: list[int]
    preempted: int


def play_on(scheduler: Any, asked: Sequence[Asked], check: Callable[[Step], None]) -> Played:
    """Submit and cancel the requests before their steps, until none is left."""
    requests = {one: Request(str(n), list(one.prompt), one.limit, one.sampling) for n, one in enumerate(asked)}
    steps: list[Step] = []
    for turn in itertools.count():
        for one, request in requests.items():
            if one.at == turn:
                request.number, request.tenant, request.priority = next(_numbers), "ab"[turn % 2], 1 + turn % 3
                scheduler.submit(request)
            if one.has_left(turn) and request.came and not request.end:
                scheduler.cancel(request)
        assert turn < MOST_STEPS, "it does not end"
        if not scheduler.idle:
            steps.append(scheduler.step())
            check(steps[-1])
        elif turn > max(one.at for one in asked):
            break
    for one, request in requests.items():
        one.output, one.error = request.output, request.error
    return Played([found for each in steps for found in each.cached if found], sum(len(each.evicted) for each in steps))


class Inflight:
    """An `Engine` behind the labs' scheduler. Each play has a scheduler of its own, and the engine stays.

    What the scheduler's account says of a step is what the engine does in it: tokens are there when they are due.
    """

    block, longest, most, piece = 32, 260, 48, 9  # tokens: of a block, a prompt, an answer, and a piece of a prompt
    in_pieces: ClassVar = {"features": Features(max_num_tokens=piece)}
    tight: ClassVar = {"blocks": 5}
    sharing: ClassVar = {"features": Features(max_num_tokens=40, kv_cache_reuse=True)}

    def __init__(self, kind: Any, module: Any, folder: str, weights: str, held: Held, *can: str) -> None:
        """`folder` is what the engine loads, made from `weights`. It `can` do what these fields of Sampling ask."""
        self.kind, self.module, self.folder, self.weights, self.can = kind, module, folder, weights, can
        self._held, self._engines = held, dict[Any, Any]()

    @property
    def held(self) -> int:
        return self._held(self.engine)

    def open(self, blocks: int, features: Features) -> Any:
        """An engine without requests. With prefix caching it is a new one, because a used one knows prefixes."""
        key = blocks, features
        if features.kv_cache_reuse or key not in self._engines:
            self._engines[key] = self.kind(self.folder, KVBudget(blocks, self.block), SLOTS, True, 1, features)
            self._engines[key].warm_up()
        return self._engines[key]

    def by_chance(self, rng: random.Random) -> dict[str, Any]:
        """Settings of a play; half of the time all that goes together."""
        everything, shares = rng.random() < 0.5, rng.random() < 0.6 and self.module.SHARES
        speculation = NONE
        if self.module.SPECULATION and not shares:
            speculation = rng.choice([PROMPT_LOOKUP, DRAFT] if everything else [NONE, PROMPT_LOOKUP, DRAFT])
        chunked = speculation != DRAFT and (everything or rng.random() < 0.7)
        tokens = rng.choice([16, 33, 48, 64, 100, 256]) if chunked else 512
        drafts, draft = DRAFTS if speculation != NONE else 0, self.folder if speculation == DRAFT else ""
        return {
            "features": Features(chunked, tokens, shares, speculation, drafts, draft),
            "policy": Policy.MAX_UTILIZATION if everything else rng.choice(list(Policy)),
            "word": rng.choice(list(ORDERS)),
            "blocks": rng.randint(11, 14),
            "static": not everything and rng.random() < 0.2,
        }

    def play(
        self,
        asked: Sequence[Asked],
        slots: int = SLOTS,
        *,
        features: Features = PLAIN,
        blocks: int = 64,
        policy: Policy = Policy.MAX_UTILIZATION,
        static: bool = False,
        word: str = "",
    ) -> Played:
        kv, self.engine = KVBudget(blocks, self.block), self.open(blocks, features)
        there: dict[Request, int] = {}

        def check(turn: Step) -> None:
            assert sum(turn.tokens) <= features.max_num_tokens
            if turn.guessed:
                assert all(good <= guessed for good, guessed in zip(turn.accepted, turn.guessed, strict=True))
            made = {request: len(tokens) for request, tokens in turn.produced}
            for request, letter, count in zip(turn.requests, turn.phase, turn.tokens, strict=True):
                there[request] = count + (request.found if request.id in turn.joined else there[request])
                due = there[request] == request.tokens - made.get(request, 0)
                assert letter == "d" or features.speculation != NONE or (request in made) == due

        return play_on(Scheduler(self.engine, kv, policy, slots, static, features, order(word)), asked, check)


class Stepwise:
    """A decoder of GPT-2. The caller chooses the sequences of a step: here newcomers and any others, in any order."""

    block, longest, most, piece = 16, 60, 20, 7
    in_pieces: ClassVar = {"piece": piece}
    tight: ClassVar = {"preempted": 9}
    sharing: ClassVar[dict[str, Any]] = {}

    def __init__(self, weights: str, decoder: Any, held: Held) -> None:
        self.weights, self.decoder, self._held, self.can = weights, decoder, held, ("sample",)

    @property
    def held(self) -> int:
        return self._held(self.decoder)

    def by_chance(self, rng: random.Random) -> dict[str, Any]:
        return {"seed": rng.random()}

    def play(
        self, asked: Sequence[Asked], slots: int = SLOTS, *, seed: float = 0, preempted: int = -1, piece: int = 0
    ) -> Played:
        """`preempted`: the step after which all lose their slots; `piece`: tokens of a prompt in one step, or all."""
        rng, sequences, running, played = random.Random(seed), dict[Asked, Any](), list[Asked](), Played([], 0)
        waiting = sorted(asked, key=lambda one: one.at)
        for turn in itertools.count():
            waiting = [one for one in waiting if not one.has_left(turn)]
            while waiting and waiting[0].at <= turn and len(running) < slots:
                running.append(waiting.pop(0))
                sequences[running[-1]] = self._begun(running[-1], piece)
            batch = [one for one in running if not one.output or rng.random() < 0.7]
            rng.shuffle(batch)
            chosen = [sequences[one] for one in batch]
            self.decoder.tokens(chosen)
            cached = self.decoder.step(chosen).get("cached", ())
            for one in batch:
                one.output = sequences[one].ids[len(one.prompt) :]
                one.error = sequences[one].error
            played = Played([*played.found, *filter(None, cached)], played.preempted + (turn == preempted))
            for one in list(running):
                gone = sequences[one].finished or one.has_left(turn + 1)
                if gone or turn == preempted:
                    self.decoder.release(sequences[one])
                if gone:
                    running.remove(one)
            if not waiting and not running:
                break
        return played

    def _begun(self, one: Asked, piece: int) -> Any:
        sequence = labserve_tiny.sequence(one.prompt, one.limit, sampler_of(one.sampling))
        sequence.eos, sequence.name = one.sampling.end_id, str(id(one))
        for end in range(piece, len(one.prompt), piece) if piece else ():
            sequence.ids = one.prompt[:end]
            self.decoder.logits([sequence])
        sequence.ids = list(one.prompt)
        return sequence


class Together:
    """A decoder of CodeGen: a batch begins together, and a request that has ended leaves it."""

    block, longest, most, held = 16, 60, 20, 0  # it forgets a batch when the next one begins

    def __init__(self, weights: str, decoder: Any) -> None:
        self.weights, self.decoder, self.can = weights, decoder, ("sample",)

    def by_chance(self, rng: random.Random) -> dict[str, Any]:
        return {}

    def play(self, asked: Sequence[Asked], slots: int = SLOTS) -> None:
        for first in range(0, len(asked), slots):
            batch = asked[first : first + slots]
            rows = [
                TextRow(list(one.prompt), len(one.prompt), one.limit, one.sampling.end_id, sampler_of(one.sampling))
                for one in batch
            ]
            here, scores = list(range(len(rows))), self.decoder.begin([one.prompt for one in batch])
            for turn in itertools.count(1):
                left = advance([rows[at] for at in here], scores)
                keep = [place for place in left if not batch[here[place]].has_left(turn)]
                here = [here[place] for place in keep]
                if not here:
                    break
                scores = self.decoder.step(keep, [rows[at].ids[-1] for at in here])
            for one, row in zip(batch, rows, strict=True):
                one.output, one.error = row.ids[row.prompt :], row.error


class Vllm:
    """vLLM, which is its own scheduler, in a process whose Python finds it: one engine of ten blocks for all plays."""

    block, longest, most, piece = 32, 200, 48, 64
    in_pieces: ClassVar[dict[str, Any]] = {}
    tight, sharing = in_pieces, in_pieces
    can, held = (), 0

    def __init__(self, process: Executor, weights: str) -> None:
        self.process, self.weights = process, weights

    def by_chance(self, rng: random.Random) -> dict[str, Any]:
        return {}

    def play(self, asked: Sequence[Asked], slots: int = SLOTS) -> Played:
        played = Played([], 0)
        for batch in [asked] if slots > 1 else [[one] for one in asked]:
            played, self.held, there = self.process.submit(play_on_vllm, self.weights, list(batch)).result()
            for one, done in zip(batch, there, strict=True):
                one.output, one.error = done.output, done.error
        return played


def play_on_vllm(weights: str, asked: list[Asked]) -> tuple[Played, int, list[Asked]]:
    """In the process with vLLM. Returns how many requests it still knows, and the requests that were asked."""
    scheduler = open_vllm(weights)
    played = play_on(scheduler, asked, lambda _: None)
    return played, len(scheduler.running) + len(scheduler.waiting), asked


@functools.cache
def open_vllm(weights: str) -> Any:
    from labserve.inflight.setup import open_scheduler

    words = {
        "engine": "vllm",
        "gpt_model_path": weights,
        "gpt_model_type": "inflight_fused_batching",
        "exact": "true",
        "threads": "1",
        "max_num_sequences": str(SLOTS),
        "max_num_tokens": str(Vllm.piece),
        "max_tokens_in_paged_kv_cache": str(10 * Vllm.block),
        "enable_kv_cache_reuse": "true",
    }
    return open_scheduler(lambda name: words.get(name, ""), "cpu").scheduler


def sampler_of(asked: Sampling) -> Sampler:
    return Sampler(asked.temperature if asked.sample else 0.0, asked.top_k, asked.top_p, asked.seed)
