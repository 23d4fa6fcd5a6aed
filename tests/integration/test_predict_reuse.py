"""Prefix caching: a replay finds in the KV cache what OpenVINO's engine finds there, step by step."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from checkout import ROOT
from random_workloads import ORDERS, POLICIES, settings, workloads

from labctl.artifacts import engines
from labctl.workspace import Workspace
from labkit.evidence.bounds import PlayingField
from labsched.features import Features
from labsched.kv_budget import KVBudget
from labsched.log.settings import SchedulerSettings
from labsched.order import order
from labsched.policy import Policy
from labsched.replay import figures, player
from labsched.replay.player import Tokens
from labsched.replay.recording import Arrival
from labsched.request import Sampling
from labsched.scheduler import Scheduler
from labserve.inflight.openvino_engine import BLOCK_SIZE, OpenVinoEngine, OpenVinoHandle

pytestmark = pytest.mark.night

VOCABULARY, LEAST_ID = 2995, 5
WORKLOADS = 6


class InVocabulary(Tokens):
    """Ids that the model knows."""

    def of(self, arrival: Arrival, count: int) -> list[int]:
        return [LEAST_ID + token * 2_654_435_761 % VOCABULARY for token in super().of(arrival, count)]


class Computing(OpenVinoEngine):
    """The engine behind a replay, whose requests say what the answer is instead of how to choose it."""

    def add(self, ids: list[int], limit: int, sampling: Any) -> OpenVinoHandle:
        return super().add(ids, limit, Sampling())


@pytest.fixture(scope="module")
def folder(cache: Path) -> str:
    made = engines.request("openvino", "random:tiny-llama", {"precision": "fp32"})
    return str(made.make(Workspace(ROOT, cache), print))


def server(folder: str, words: SchedulerSettings) -> Scheduler:
    """What a server has behind its queue, warmed up."""
    batch, kv = int(words.words["max_num_sequences"]), KVBudget(words.blocks, BLOCK_SIZE)
    features = Features(words.words["enable_chunked_context"] == "true", words.step_tokens, kv_cache_reuse=True)
    engine = Computing(folder, kv, batch, True, 1, features)
    engine.warm_up()
    policy = Policy(words.words["batch_scheduler_policy"])
    return Scheduler(engine, kv, policy, batch, False, features, order(words.words["scheduling"]))


@pytest.mark.parametrize("seed", range(16))
def test_steps_with_prefix_caching_are_predicted_exactly(
    seed: int, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(player, "Tokens", InVocabulary)
    rng = random.Random(seed)
    chosen = settings(rng, rng.choice(ORDERS), rng.choice(POLICIES))
    arrivals = workloads(rng, WORKLOADS)
    blocks = chosen["max_tokens_in_paged_kv_cache"] // BLOCK_SIZE
    words = PlayingField(chosen["max_num_sequences"], blocks, BLOCK_SIZE, chosen["max_num_tokens"]).settings(arrivals)
    words.words.update(  # type: ignore[attr-defined]
        {name: str(value).lower() for name, value in chosen.items() if name != "enable_kv_cache_reuse"}
    )
    predicted = player.Replay(player.scheduler_of(words), arrivals).run()
    seen = player.Replay(server(folder, words), arrivals).run()
    assert figures.first_difference(predicted, seen) is None
    assert len(seen) > 100 and any(any(row.cached) for row in seen)
