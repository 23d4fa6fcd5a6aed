"""The recorder in vLLM's own scheduler: what vLLM decides is unchanged, and a replay is the recording."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
import vllm_traffic
from click.testing import CliRunner
from layer import process_with_vllm, require_vllm

from labctl.cli.explain import explain_command
from labctl.recordings.vllm import VllmReplays
from labsched.replay import figures, recording
from labsched.replay.vllm_arguments import labs_names
from labsched.replay.vllm_scheduler import change_vllm_settings
from labsched.vllm import reader

pytestmark = [pytest.mark.night, pytest.mark.xdist_group("vllm")]
KINDS = {"": {}, "ahead": {"async_scheduling": "true"}, "priority": {"scheduling": "priority"}}
kinds = pytest.mark.parametrize("words", KINDS.values(), ids=["sync", "async", "priority"])


@pytest.fixture(scope="module")
def vllm(cache: Path) -> Iterator[ProcessPoolExecutor]:
    with process_with_vllm(cache) as pool:
        yield pool


@pytest.fixture(scope="module")
def replays(cache: Path) -> Iterator[VllmReplays]:
    with VllmReplays(require_vllm(cache)) as found:
        yield found


@kinds
def test_what_vllm_decides_and_answers_is_the_same_with_and_without(
    words: dict[str, str], vllm: ProcessPoolExecutor, tmp_path: Path
) -> None:
    """Every field of every `SchedulerOutput`, and every token; with aborts and preemptions."""
    preemptions = aborts = 0
    for seed in range(10):
        plain, preempted, aborted = vllm.submit(vllm_traffic.play, words, seed, False).result()
        recorded, *_ = vllm.submit(vllm_traffic.play_recorded, words, seed, str(tmp_path / str(seed))).result()
        assert recorded == plain
        preemptions, aborts = preemptions + preempted, aborts + aborted
        lines = reader.read_vllm_recording(tmp_path / str(seed))
        assert sum(line["kind"] == "request" for line in lines) == 60
    assert preemptions and aborts


@kinds
def test_a_replay_of_requests_that_are_pinned_to_steps_is_the_recording(
    words: dict[str, str], vllm: ProcessPoolExecutor, replays: VllmReplays, tmp_path: Path
) -> None:
    preemptions = cached = 0
    for seed in range(5):
        folder = tmp_path / str(seed)
        vllm.submit(vllm_traffic.pinned, words, seed, str(folder)).result()
        read = recording.read_recording(folder)
        assert len(read.arrivals) == 40 and len(read.steps) > 50
        assert figures.first_difference(replays.replay(read, read.settings).steps, read.steps) is None
        preemptions += sum(len(row.evicted) for row in read.steps)
        cached += sum(sum(row.cached) for row in read.steps)
    assert preemptions and cached


def test_another_setting_under_vllms_name_is_as_vllm_would_have_decided(
    vllm: ProcessPoolExecutor, replays: VllmReplays, tmp_path: Path
) -> None:
    """The same requests, recorded under both settings: the one is predicted from the other, step by step."""
    theirs = {"max_num_seqs": "3", "max_num_batched_tokens": "32", "num_gpu_blocks_override": "16"}
    vllm.submit(vllm_traffic.pinned, {}, 1, str(tmp_path / "one")).result()
    one = recording.read_recording(tmp_path / "one")
    ours = labs_names(one.settings, theirs)
    vllm.submit(vllm_traffic.pinned, ours, 1, str(tmp_path / "other")).result()
    other = recording.read_recording(tmp_path / "other")
    predicted = replays.replay(one, change_vllm_settings(one.settings, ours))
    pins = {arrival.name: arrival.after for arrival in one.arrivals}
    assert {arrival.name: arrival.after for arrival in other.arrivals} == pins, "both were pinned to the same steps"
    assert figures.first_difference(predicted.steps, other.steps) is None


def test_explain_answers_for_such_a_folder(vllm: ProcessPoolExecutor, tmp_path: Path) -> None:
    vllm.submit(vllm_traffic.play_recorded, {}, 1, str(tmp_path)).result()
    shown = CliRunner().invoke(explain_command, [str(tmp_path)], catch_exceptions=False).stdout
    assert "not tested" not in shown and "replayed with" in shown, "vLLM is here"
    assert shown.startswith("vllm-") and "p99 of TTFT" in shown and f"labctl explain {tmp_path}" in shown
    story = CliRunner().invoke(explain_command, [str(tmp_path), "request-20"], catch_exceptions=False).output
    assert "request-20" in story and "joins" in story
