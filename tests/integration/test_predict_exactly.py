"""What the scheduler will do under settings that were never recorded: predicted step by step, and seen on a server."""

from __future__ import annotations

import random
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pinned_requests import send_step_by_step
from random_workloads import ORDERS, POLICIES, settings, workloads

from labctl.labs import rerun
from labsched.replay import figures, player, recording

pytestmark = pytest.mark.xdist_group("llm")
MODEL = "random:tiny-llama"
WORKLOADS, MANY = 4, 40  # for each of the settings
RECORDED = {"scheduling": "fcfs", "batch_scheduler_policy": "guaranteed_no_evict", "max_num_sequences": 4}


def played(server: Any, arrivals: list[recording.Arrival], folder: Path, vocabulary: int) -> recording.Recording:
    began = time.monotonic()
    records = send_step_by_step(server.grpc, server.run_dir, arrivals, vocabulary)
    assert [record.error for record in records] == [""] * len(arrivals)
    return recording.read_recording(
        rerun.log_of(server.run_dir, folder / "steps-played.jsonl", began, records)
    ).numbered()


@pytest.fixture(scope="module")
def vocabulary() -> int:
    return 2990


@pytest.fixture(scope="module")
def recorded(lab_server: Any, tmp_path_factory: pytest.TempPathFactory, vocabulary: int) -> recording.Recording:
    """One run under plain settings; everything else is predicted from it."""
    server = lab_server("inflight-batching", model=MODEL, decoupled_mode=True, **RECORDED)
    arrivals = workloads(random.Random(7), WORKLOADS)
    found = played(server, arrivals, tmp_path_factory.mktemp("recorded"), vocabulary)
    pins = [replace(one, after=pin.after) for one, pin in zip(found.arrivals, arrivals, strict=True)]
    return replace(found, arrivals=pins)


def test_a_replay_under_the_recorded_settings_is_the_recording(recorded: recording.Recording) -> None:
    predicted = player.replay(recorded, recorded.settings)
    assert len(recorded.steps) > 100
    assert figures.first_difference(predicted.steps, recorded.steps) is None


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("policy", POLICIES)
def test_steps_under_settings_never_recorded_are_predicted_exactly(
    order: str, policy: str, lab_server: Any, recorded: recording.Recording, tmp_path: Path, vocabulary: int
) -> None:
    chosen = settings(random.Random(f"{order} {policy}"), order, policy)
    words = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in chosen.items()}
    predicted = player.replay(recorded, player.change_settings(recorded.settings, words))
    server = lab_server("inflight-batching", model=MODEL, decoupled_mode=True, **chosen)
    seen = played(server, list(recorded.arrivals), tmp_path, vocabulary)
    assert figures.first_difference(predicted.steps, seen.steps) is None
    preempted = sum(len(row.evicted) for row in seen.steps)
    assert len(seen.steps) > 100 and (preempted > 0) == (policy == "max_utilization")


@pytest.mark.night
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("policy", POLICIES)
def test_many_workloads_are_predicted_exactly(
    order: str, policy: str, lab_server: Any, recorded: recording.Recording, tmp_path: Path, vocabulary: int
) -> None:
    rng = random.Random(f"many {order} {policy}")
    chosen = settings(rng, order, policy)
    words = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in chosen.items()}
    sent = workloads(rng, MANY)
    predicted = player.replay(replace(recorded, arrivals=sent), player.change_settings(recorded.settings, words))
    seen = played(
        lab_server("inflight-batching", model=MODEL, decoupled_mode=True, **chosen), sent, tmp_path, vocabulary
    )
    assert figures.first_difference(predicted.steps, seen.steps) is None and len(seen.steps) > 25 * MANY
