"""The traces of the arena, each made from a seed: six public ones, and hidden ones with a secret seed."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence

from labkit.predict.traces import agents, hashes, scale_lengths
from labsched.recording import Arrival

REQUESTS = 96
HIDDEN = 20
RATE = 14.0  # requests/s of one chat user group: the field of the referee is just about busy


def _request(
    number: int, at: float, prompt: float, made: float, limit: int, tenant: str, priority: int, prefixes: bytes = b""
) -> Arrival:
    """A request whose answer ends by itself, or at its limit."""
    tokens = max(1, min(limit, round(made)))
    ends_by_itself = tokens < limit
    return Arrival(
        str(number),
        at,
        0,
        max(1, round(prompt)),
        limit,
        tokens,
        "stop" if ends_by_itself else "length",
        word=ends_by_itself,
        tenant=tenant,
        priority=priority,
        prefixes=prefixes,
    )


def _drawn(rng: random.Random, mean: float, sigma: float, most: int) -> float:
    """Lognormal, with this mean before it is cut."""
    return min(most, rng.lognormvariate(math.log(mean) - sigma**2 / 2, sigma))


def chat(rng: random.Random, count: int) -> list[Arrival]:
    """Poisson arrivals, prompts of about 100 tokens, answers that vary widely and end long before their limit."""
    at, requests = 0.0, []
    for number in range(1, count + 1):
        prompt, made = _drawn(rng, 100, 0.4, 300), _drawn(rng, 60, 1.0, 256)
        requests.append(_request(number, at, prompt, made, 256, rng.choice("abcd"), rng.choice((1, 2, 2, 2, 3))))
        at += rng.expovariate(4 * RATE)
    return requests


def bursts(rng: random.Random, count: int) -> list[Arrival]:
    """Bursts with pauses between them (BurstGPT: gaps of a gamma distribution), chat-like requests."""
    at, requests = 0.0, []
    for number in range(1, count + 1):
        prompt, made = _drawn(rng, 150, 0.6, 600), _drawn(rng, 50, 0.8, 200)
        requests.append(_request(number, at, prompt, made, 200, rng.choice("ab"), rng.choice((1, 2, 3))))
        at += rng.gammavariate(0.25, 1 / (0.25 * 4 * RATE))
    return requests


def articles(rng: random.Random, count: int) -> list[Arrival]:
    """Long prompts and short answers (news and their summaries) among chat."""
    at, requests = 0.0, []
    for number in range(1, count + 1):
        long = rng.random() < 0.3
        prompt = _drawn(rng, 1200, 0.4, 2400) if long else _drawn(rng, 60, 0.4, 200)
        made = _drawn(rng, 40, 0.4, 120)
        requests.append(_request(number, at, prompt, made, 128, "reader" if long else "writer", 2))
        at += rng.expovariate(3 * RATE)
    return requests


def flood(rng: random.Random, count: int) -> list[Arrival]:
    """One tenant sends most of it at once; two others come one request after the other."""
    requests, at = [], 0.0
    for number in range(1, count + 1):
        many = rng.random() < 0.7
        tenant = "flood" if many else rng.choice(("light", "slow"))
        at += 0.0 if many and number < count // 2 else rng.expovariate(3 * RATE)
        prompt, made = _drawn(rng, 120, 0.5, 400), _drawn(rng, 80 if many else 30, 0.5, 200)
        requests.append(_request(number, at, prompt, made, 200, tenant, 2))
    return requests


def coding_agents(rng: random.Random, count: int) -> list[Arrival]:
    """Sessions of coding agents, as `labctl bench --trace agents` sends them, faster."""
    return [
        _request(number, request.at / 30, request.prompt, request.made * 4, 64, f"s{number % 5}", 2, request.prefixes)
        for number, request in enumerate(scale_lengths(agents(count, rng.randrange(10**6))), 1)
    ]


def documents(rng: random.Random, count: int) -> list[Arrival]:
    """Questions about eight documents, each in front of its question: the KV cache holds five of them at a time."""
    length, at, requests = 480, 0.0, []
    for number in range(1, count + 1):
        document, question = rng.randrange(8), round(_drawn(rng, 40, 0.4, 100))
        prefixes = hashes(f"document {document}", 0, length) + hashes(f"question {number}", 0, question)
        made = _drawn(rng, 40, 0.6, 120)
        requests.append(_request(number, at, length + question, made, 128, rng.choice("ab"), 2, prefixes))
        at += rng.expovariate(3 * RATE)
    return requests


def convoy(rng: random.Random, count: int) -> list[Arrival]:
    """Adversarial: long requests first, and behind them three times as many short ones as other traces have requests.

    The number of short requests separates policies that always admit them first from policies that stop after a while.
    """
    requests = [_request(number, 0.0, 900, 200, 256, "long", 3) for number in range(1, 9)]
    at = 0.01
    for number in range(9, 3 * count + 1):
        requests.append(_request(number, at, _drawn(rng, 40, 0.4, 90), _drawn(rng, 16, 0.6, 40), 64, "short", 1))
        at += rng.expovariate(20 * RATE)
    return requests


def thrash(rng: random.Random, count: int) -> list[Arrival]:
    """Adversarial: short prompts join easily, and nearly all answers grow to their limit: memory runs out together."""
    return [
        _request(number, (number - 1) * 0.004, _drawn(rng, 40, 0.3, 90), _drawn(rng, 380, 0.1, 400), 400, "a", 2)
        for number in range(1, count // 2 + 1)
    ]


Maker = Callable[[random.Random, int], list[Arrival]]
PUBLIC: Sequence[Maker] = (chat, bursts, articles, flood, coding_agents, documents)
ADVERSARIAL: Sequence[Maker] = (convoy, thrash)


def public_traces() -> Mapping[str, Sequence[Arrival]]:
    """The public traces, by name."""
    return {maker.__name__: maker(random.Random(maker.__name__), REQUESTS) for maker in PUBLIC}


def hidden_traces(seed: str) -> Mapping[str, Sequence[Arrival]]:
    """The traces of an instructor's seed: others of the same kinds, and two kinds that are made to hurt."""
    makers = [*PUBLIC, *ADVERSARIAL]
    traces = {}
    for number in range(HIDDEN):
        maker = makers[number % len(makers)]
        traces[f"{maker.__name__}-{number + 1}"] = maker(random.Random(f"{seed} {number}"), REQUESTS)
    return traces
