"""What NVIDIA's backend reports of its iterations, made into lab 05's figures."""

from __future__ import annotations

from typing import Any

import pytest

from labkit.client.trtllm_metrics import Sample, parse_trtllm_gauges, scheduling_figures

# As upstream shows it (tensorrtllm_backend v0.17.0, README.md:707-742), with a second model.
PAGE = """
# TYPE nv_trt_llm_request_metrics gauge
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="scheduled",version="1"} 3
nv_trt_llm_request_metrics{model="other",request_type="scheduled",version="1"} 9
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="max",model="tensorrt_llm",version="1"} 6239
nv_trt_llm_inflight_batcher_metrics{inflight_batcher_specific_metric="paused_requests",model="tensorrt_llm"} 1
nv_trt_llm_general_metrics{general_type="timestamp",model="tensorrt_llm",version="1"} 1.7e+15
nv_trt_llm_general_metrics{general_type="iteration_counter",model="tensorrt_llm",version="1"} 58
nv_inference_count{model="tensorrt_llm",version="1"} 2
"""


def test_the_gauges_of_one_model_are_read_by_group_and_kind() -> None:
    found = parse_trtllm_gauges(PAGE, "tensorrt_llm")
    assert found["request scheduled"] == 3
    assert found["kv_cache_block max"] == 6239
    assert found["inflight_batcher paused_requests"] == 1
    assert found["general iteration_counter"] == 58
    assert parse_trtllm_gauges(PAGE, "third") == {}


def sample(at: float, iteration: int, scheduled: int, **more: float) -> Sample:
    gauges = {"general iteration_counter": float(iteration), "request scheduled": float(scheduled)}
    return Sample(at, gauges | {key.replace("__", " "): value for key, value in more.items()})


def in_flight(at: float, iteration: int, scheduled: int, paused: int = 0) -> Sample:
    return sample(
        at,
        iteration,
        scheduled,
        inflight_batcher__paused_requests=paused,
        kv_cache_block__used=10.0 * scheduled,
        kv_cache_block__max=100.0,
    )


def test_iterations_are_counted_and_what_happened_in_them_is_as_far_as_it_was_seen() -> None:
    samples = [
        in_flight(0.0, 5, 2, paused=7),  # of the warm-up
        in_flight(1.1, 6, 4, paused=1),
        in_flight(1.2, 6, 4, paused=9),  # the next one's, half written
        in_flight(1.3, 9, 2),
        in_flight(1.4, 10, 0),
    ]
    found = scheduling_figures(samples, since=1.0)
    assert found == {
        "steps": 5,
        "mean_batch": 3,
        "max_batch": 4,
        "max_kv_blocks_used": 40,
        "kv_blocks": 100,
        "iterations": 5,
        "iterations_seen": 3,
        "preemptions": 1,
    }


def v1(at: float, iteration: int, scheduled: int, made: int, empty: int) -> Sample:
    return sample(at, iteration, scheduled, v1__total_generation_tokens=made, v1__empty_generation_slots=empty)


def test_a_batch_of_v1_has_the_steps_of_its_longest_answer() -> None:
    samples = [v1(0.0, 1, 1, 5, 0), v1(1.1, 2, 4, 30, 10), v1(1.2, 3, 2, 12, 0)]
    found = scheduling_figures(samples, since=1.0)
    assert (found["steps"], found["iterations"], found["preemptions"]) == (10 + 6, 2, 0)
    assert found["mean_batch"] == 42 / 16


def test_steps_of_v1_are_missing_where_a_batch_was_not_seen() -> None:
    assert "steps" not in scheduling_figures([v1(0.0, 1, 1, 5, 0), v1(1.2, 3, 2, 12, 0)], since=1.0)


@pytest.mark.parametrize("samples", [[], [Sample(0.0, {})], [in_flight(0.0, 5, 2)], [in_flight(1.5, 5, 2)]])
def test_nothing_is_said_where_nothing_was_reported(samples: list[Any]) -> None:
    assert scheduling_figures(samples, since=1.0) == {}


def test_a_release_that_does_not_count_paused_requests_says_nothing_of_them() -> None:
    found = scheduling_figures([sample(0.0, 1, 1), sample(1.1, 2, 3)], since=1.0)
    assert found["steps"] == 1
    assert "preemptions" not in found
