"""An exit quiz about schedules: numbers are drawn from a seed, and the labs' own scheduler gives the keys."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from concept_canvas import Canvas
from concept_schedules import Arrival, Step, prefix_tree, prompt, scheduled
from draw_concepts import strip
from labsched.policy import Policy

NAMES = "ABCDEF"
BLOCKS, BLOCK = 8, 4
TRIES = 10_000


@dataclass(frozen=True)
class Question:
    """A question in Markdown. ``keys``: what is asked for, and its answer."""

    text: str
    keys: dict[str, str]
    arrivals: Sequence[Arrival]
    schedules: dict[str, list[Step]]  # what decides: drawn beside the keys

    def drawing(self) -> Canvas | None:
        """The schedules as slots and steps."""
        if not self.schedules:
            return None
        canvas = Canvas(226 * len(self.schedules))
        for number, (name, steps) in enumerate(self.schedules.items()):
            canvas.heading(20, 226 * number + 8, f"{name}: {len(steps)} steps", "")
            strip(canvas, 226 * number + 48, steps, width=min(48, 870 / len(steps)))
        return canvas


def draw(seed: int) -> list[Question]:
    """The questions of a seed."""
    rng = random.Random(seed)
    return [kind(rng) for kind in (batching, memory, budget, prefixes)]


def batching(rng: random.Random) -> Question:
    """Static against in-flight batching, where the difference shows and fits a drawing."""

    def made() -> Question | None:
        late = rng.randint(2, 4)
        arrivals = [Arrival(name, late if name in "EF" else 1, prompt(2), rng.randint(2, 9)) for name in NAMES]
        static, inflight = scheduled(arrivals, static=True)[0], scheduled(arrivals)[0]
        if len(static) - len(inflight) < 3 or len(static) > 18:
            return None
        answers = ", ".join(f"{arrival.name} {arrival.answer}" for arrival in arrivals)
        text = (
            f"A server has four slots. A to D arrive before step 1, E and F before step {late}. A request's first step "
            f"computes its prompt and its first token; each later one makes a token. Tokens of the answers: {answers}."
        )
        keys = {
            "Steps with static batching": str(len(static)),
            "Steps with in-flight batching": str(len(inflight)),
            "F's first token under static batching, in step": str(first(static, "F")),
            "F's first token under in-flight batching, in step": str(first(inflight, "F")),
        }
        return Question(text, keys, arrivals, {"static batching": static, "in-flight batching": inflight})

    return _found(made)


def memory(rng: random.Random) -> Question:
    """Three requests in a small KV cache, in which ``max_utilization`` preempts once."""

    def made() -> Question | None:
        arrivals = [Arrival(name, 1, prompt(rng.randint(4, 8)), rng.randint(4, 12)) for name in "ABC"]
        if any(-(-(len(each.prompt) + each.answer) // BLOCK) > BLOCKS for each in arrivals):
            return None
        kept, evicting = (
            scheduled(arrivals, blocks=BLOCKS, block_size=BLOCK, policy=policy)[0]
            for policy in (Policy.GUARANTEED_NO_EVICT, Policy.MAX_UTILIZATION)
        )
        victims = [(number, name) for number, step in enumerate(evicting, 1) for name in step.evicted]
        if len(victims) != 1 or first(kept, "C") == 1 or first(evicting, "C") > 1 or len(evicting) > 18:
            return None
        sizes = "; ".join(f"{each.name} {len(each.prompt)} and {each.answer}" for each in arrivals)
        text = (
            f"Three requests arrive before step 1, in the order A, B, C. The KV cache has {BLOCKS} blocks of {BLOCK} "
            "tokens. A running request needs blocks for its tokens so far and the next one. "
            f"Tokens of prompt and answer: {sizes}."
        )
        keys = {
            "C's first token under `guaranteed_no_evict`, in step": str(first(kept, "C")),
            "Under `max_utilization`, the request that is preempted": victims[0][1],
            "... and the step before which it is": str(victims[0][0]),
        }
        return Question(text, keys, arrivals, {"guaranteed_no_evict": kept, "max_utilization": evicting})

    return _found(made)


def budget(rng: random.Random) -> Question:
    """A prompt in pieces beside a request that decodes."""

    def made() -> Question | None:
        tokens, limit = rng.randint(20, 60), rng.choice((8, 12, 16))
        arrivals = [Arrival("A", 1, prompt(2), 14), Arrival("F", 3, prompt(tokens), 3)]
        steps = scheduled(arrivals, budget=limit)[0]
        pieces = [share.tokens for step in steps for share in step.shares if share.name == "F" and share.prefill]
        if first(steps, "F") + len(pieces) > 14:  # A decodes beside each piece
            return None
        text = (
            f"A decodes: a token in each step. F, with a prompt of {tokens} tokens, arrives before step 3. No step "
            f"computes more than {limit} tokens (`max_num_tokens`, `max_num_batched_tokens`)."
        )
        keys = {
            "Steps that compute F's prompt": str(len(pieces)),
            "Tokens of the prompt in the last of them": str(pieces[-1]),
        }
        return Question(text, keys, arrivals, {})

    return _found(made)


def prefixes(rng: random.Random) -> Question:
    """What a second and a third prompt find in the prefix cache."""
    shared = rng.randint(6, 14)
    lengths = [rng.randint(shared + 1, shared + 7) for _ in "ABC"]
    arrivals = [
        Arrival(name, number + 1, [*range(shared), *(100 * (number + 1) + at for at in range(length - shared))], 12)
        for number, (name, length) in enumerate(zip("ABC", lengths, strict=True))
    ]
    found = prefix_tree(arrivals)
    text = (
        f"Prefix caching is on, with blocks of {BLOCK} tokens. Three prompts arrive one after the other and begin with "
        f"the same {shared} tokens, and differ after them: A has {lengths[0]} tokens, B {lengths[1]}, C {lengths[2]}."
    )
    keys = {f"Tokens that {each.name} finds in the cache": str(each.tokens) for each in found[1:]}
    return Question(text, keys, arrivals, {})


def first(steps: Sequence[Step], name: str) -> int:
    """The number of the first step in which a request is computed."""
    return next(number for number, step in enumerate(steps, 1) if any(share.name == name for share in step.shares))


def _found(made: Callable[[], Question | None]) -> Question:
    """The first draw that shows what is asked for."""
    return next(question for _ in range(TRIES) if (question := made()) is not None)
