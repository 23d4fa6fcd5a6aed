"""What vLLM's scheduler will do under settings that were never recorded: predicted step by step, and seen on Triton."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from layer import require_vllm
from pinned_requests import send_step_by_step
from random_workloads import vllm_settings, workloads

from labctl.cli.predict import predict_command
from labctl.labs import rerun
from labctl.recordings.vllm import VllmReplays
from labsched.replay import figures, player, recording
from labsched.replay.vllm_arguments import labs_names
from labsched.replay.vllm_scheduler import change_vllm_settings
from labsched.step import Step

pytestmark = [pytest.mark.night, pytest.mark.xdist_group("vllm")]
FIXED = {"engine": "vllm", "model": "shipped:tiny-llama", "decoupled_mode": True, "exact": True}
RECORDED = {"max_num_sequences": 4, "max_tokens_in_paged_kv_cache": 320, "max_num_tokens": 64}
WORKLOADS = 4  # for each of the settings
VOCABULARY = 1000


def played(server: Any, arrivals: list[recording.Arrival], folder: Path) -> recording.Recording:
    """The requests, each before its step, and what the server recorded of them."""
    began = time.monotonic()
    records = send_step_by_step(server.grpc, server.run_dir, arrivals, VOCABULARY)
    assert [record.error for record in records] == [""] * len(arrivals)
    found = recording.read_recording(
        rerun.log_of(server.run_dir, folder / "steps-played.jsonl", began, records)
    ).numbered()
    pins = [replace(one, after=pin.after) for one, pin in zip(found.arrivals, arrivals, strict=True)]
    return replace(found, arrivals=pins)


@pytest.fixture(scope="module")
def replayed(cache: Path) -> Iterator[Callable[..., player.ReplayResult]]:
    with VllmReplays(require_vllm(cache)) as replays:
        yield replays.replay


@pytest.fixture(scope="module")
def recorded(lab_server: Any, tmp_path_factory: pytest.TempPathFactory) -> recording.Recording:
    """One run under plain settings; everything else is predicted from it."""
    server = lab_server("inflight-batching", **FIXED, **RECORDED)
    return played(server, workloads(random.Random(7), WORKLOADS), tmp_path_factory.mktemp("recorded"))


def test_a_replay_under_the_recorded_settings_is_the_recording(
    recorded: recording.Recording, replayed: Callable[..., player.ReplayResult]
) -> None:
    assert len(recorded.steps) > 100
    assert figures.first_difference(replayed(recorded, recorded.settings).steps, recorded.steps) is None


@pytest.mark.parametrize("reuse", [True, False], ids=["prefix caching", "none"])
@pytest.mark.parametrize("order", ["fcfs", "priority"])
def test_steps_of_vllm_under_settings_never_recorded_are_predicted_exactly(
    order: str,
    reuse: bool,
    lab_server: Any,
    recorded: recording.Recording,
    replayed: Callable[..., player.ReplayResult],
    tmp_path: Path,
) -> None:
    chosen = vllm_settings(random.Random(f"{order} {reuse}"), order, reuse)
    words = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in chosen.items()}
    predicted = replayed(recorded, change_vllm_settings(recorded.settings, words))
    seen = played(lab_server("inflight-batching", **FIXED, **chosen), list(recorded.arrivals), tmp_path)
    assert figures.first_difference(predicted.steps, seen.steps) is None
    assert len(seen.steps) > 100 and any(row.evicted for row in seen.steps)
    assert any(any(row.cached) for row in seen.steps) == reuse


def test_vllms_own_names_set_the_labs_settings(recorded: recording.Recording) -> None:
    given = labs_names(recorded.settings, {"max_num_seqs": "2", "max_num_batched_tokens": "32"})
    settings = change_vllm_settings(recorded.settings, given)
    assert settings.words["max_num_sequences"] == "2" and settings.step_tokens == 32


def test_predict_answers_for_a_recording_of_vllm(lab_server: Any, tmp_path: Path) -> None:
    server = lab_server("inflight-batching", **FIXED, **RECORDED)
    arrivals, began = workloads(random.Random(3), 1), time.monotonic()
    records = rerun.send_on_time(server.grpc, arrivals, VOCABULARY, 0, 120)
    log = rerun.log_of(server.run_dir, tmp_path / "steps-played.jsonl", began, records)
    done = CliRunner().invoke(predict_command, [str(log), "--set", "max_num_seqs=1", "--json"], catch_exceptions=False)
    assert '"mean_batch": 1.0' in done.output.partition('"predicted"')[2]


def computed(row: Step) -> dict[str, tuple[int, int]]:
    """Of each request that a step computes something for: how many tokens, and how many new ones."""
    every = zip(row.ids, row.tokens, row.made, strict=True)
    return {name: (tokens, made) for name, tokens, made in every if tokens}


def test_the_gate_takes_as_many_steps_as_our_own_static_batching(
    recorded: recording.Recording, replayed: Callable[..., player.ReplayResult]
) -> None:
    """Where memory is not short: our scheduler admits to a static batch what fits to its end, vLLM what fits now."""
    roomy = replace(recorded.settings, blocks=1000)
    words = {**roomy.words, "gpt_model_type": "V1", "batch_scheduler_policy": "guaranteed_no_evict"}
    gate = replayed(recorded, replace(roomy, words=words)).steps
    ours = player.replay(recorded, replace(roomy, words={**words, "engine": "openvino"})).steps
    inflight = replayed(recorded, roomy).steps
    assert [computed(row) for row in gate] == [computed(row) for row in ours]
    assert len(gate) > len(inflight)


def test_steps_that_are_decided_ahead_are_replayed_exactly_and_give_the_same_answers(
    lab_server: Any, recorded: recording.Recording, replayed: Callable[..., player.ReplayResult], tmp_path: Path
) -> None:
    """No clock is held: vLLM decides a step while another is computed, and requests come at any moment."""
    server = lab_server("inflight-batching", **FIXED, **RECORDED, async_scheduling=True)
    arrivals, began = workloads(random.Random(7), WORKLOADS), time.monotonic()
    records = rerun.send_on_time(server.grpc, arrivals, VOCABULARY, 0, 120)
    seen = recording.read_recording(
        rerun.log_of(server.run_dir, tmp_path / "steps-played.jsonl", began, records)
    ).numbered()
    assert figures.first_difference(replayed(seen, seen.settings).steps, seen.steps) is None
    assert [arrival.made for arrival in seen.arrivals] == [arrival.made for arrival in arrivals]
