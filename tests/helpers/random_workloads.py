"""Requests by chance for the scheduler, and settings by chance; each request is pinned to a step."""

from __future__ import annotations

import random
from typing import Any

from labsched.log.settings import HASH_BYTES
from labsched.replay.recording import Arrival

APART = 10_000  # steps from one workload to the next: the server is idle before each
ORDERS = ("fcfs", "shortest_first", "priority", "fair")
POLICIES = ("max_utilization", "guaranteed_no_evict")


def settings(rng: random.Random, order: str, policy: str) -> dict[str, Any]:
    """What `up --set` takes: a small cache and few slots, so that every decision is met."""
    chunked = rng.random() < 0.7
    batch = rng.randint(3, 6)
    return {
        "scheduling": order,
        "batch_scheduler_policy": policy,
        "max_num_sequences": batch,
        "max_tokens_in_paged_kv_cache": 32 * rng.randint(6, 8),
        "enable_chunked_context": chunked,
        "max_num_tokens": rng.choice([16, 33, 64, 100]) if chunked else 256,
        "enable_kv_cache_reuse": False,
    }


def vllm_settings(rng: random.Random, order: str, reuse: bool) -> dict[str, Any]:
    """The same for ``engine=vllm``: it preempts, whatever the policy."""
    chunked = rng.random() < 0.7
    blocks = rng.randint(6, 8)
    return {
        "scheduling": order,
        "max_num_sequences": rng.randint(3, 6),
        "max_tokens_in_paged_kv_cache": 32 * blocks,
        "enable_chunked_context": chunked,
        "max_num_tokens": rng.choice([16, 33, 64, 100]) if chunked else 256,
        "enable_kv_cache_reuse": reuse,
    }


def workloads(rng: random.Random, count: int, requests: int = 9) -> list[Arrival]:
    """The requests of ``count`` workloads, one after the other; some prompts begin alike."""
    found: list[Arrival] = []
    for number in range(count):
        beginning = rng.randbytes(HASH_BYTES * 80)
        afters = sorted(rng.randint(0, 12) for _ in range(requests))
        for after in afters:
            shared = rng.choice([0, 0, 20, 32, 45, 64, 80])
            prompt = max(1, shared + rng.choice([1, 3, 10, 40])) if shared else rng.choice([1, 7, 30, 90, 120])
            limit = rng.choice([1, 5, 12, 40, 60])
            prefixes = beginning[: shared * HASH_BYTES] + rng.randbytes(HASH_BYTES * (prompt - shared))
            found.append(
                Arrival(
                    str(len(found) + 1),
                    0.0,
                    APART * number + after,
                    prompt,
                    limit,
                    limit,
                    "length",
                    tenant=rng.choice("ab"),
                    priority=rng.randint(1, 4),
                    prefixes=prefixes,
                )
            )
    return found
