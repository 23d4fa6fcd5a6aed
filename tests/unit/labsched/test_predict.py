"""`labctl predict`: recordings are read or refused, and replayed; the time of a step is fitted."""

from __future__ import annotations

import copy
import itertools
import json
import math
import os
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import fake_backend
import hypothesis
import numpy as np
import pytest
import recordings
from click.testing import CliRunner
from counting_engine import CountingEngine
from hypothesis import given
from hypothesis import strategies as st
from lab_errors import lab_error
from model_cases import CASES, answered, request
from recordings import SETTINGS, cost, made_up_recording, some_requests, written
from step_schema import LINES, RequestLine
from waiting import eventually

from labctl.cli.predict import plan_command, predict_command
from labctl.labs.compare import compare
from labkit.errors import LabError
from labsched.__main__ import main as module
from labsched.costs import StepCounts
from labsched.features import Features
from labsched.kv_budget import KVBudget
from labsched.pace import DEVICES, SHAPES
from labsched.replay import answer, figures, fitting, player, prediction, recording, steptime
from labsched.replay.fitting import fit
from labsched.replay.recording import Recording
from labsched.replay.slo import Slo
from labsched.replay.vllm_arguments import labs_names
from labsched.replay.vllm_scheduler import change_vllm_settings
from labsched.step import Step
from labserve.inflight import setup

LLM = next(case for case in CASES if case.path == "llm/tensorrt_llm")


@pytest.fixture(scope="module")
def made_up() -> Recording:
    return made_up_recording()


# -- recording --------------------------------------------------------------------------------------------------------


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[], Any]:
    monkeypatch.setattr(setup, "open_engine", lambda *_: (CountingEngine(256), KVBudget(100, 4), Features()))
    return lambda: fake_backend.load(LLM.path, run_dir=tmp_path, **LLM.filled)


def test_the_server_records_every_request_and_a_replay_of_it_decides_the_same(
    server: Callable[[], Any], tmp_path: Path
) -> None:
    model = server()
    answered(model, [request(LLM, {"request_output_len": [[n]]}) for n in (3, 1, 5, 2, 4, 2)])
    (log,) = tmp_path.glob("steps-*.jsonl")
    eventually(lambda: log.read_text().count('"kind":"step"') >= 5)
    model.finalize()
    lines = [LINES.validate_json(line) for line in log.read_text().splitlines()]
    told = [line for line in lines if isinstance(line, RequestLine)]
    assert [line.made for line in told].count(2) == 2
    assert max(line.waited for line in told) < 60  # seconds: it was stamped
    found = recording.read_recording(log)
    assert [one.limit for one in found.arrivals] == [3, 1, 5, 2, 4, 2]
    assert figures.first_difference(player.replay(found, found.settings).steps, found.steps) is None


def changed(path: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Path:
    """The recording with each line changed."""
    lines = [change(json.loads(line)) for line in path.read_text().splitlines()]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return path


def test_a_request_came_when_triton_handed_it_over_and_not_when_the_step_was_over(
    made_up: Recording, tmp_path: Path
) -> None:
    def waited(line: dict[str, Any]) -> dict[str, Any]:
        return {**line, "waited": 0.25 * (line["came"] % 2)} if line["kind"] == "request" else line

    path = changed(written(tmp_path, made_up), waited)
    came = [one.at - two.at for one, two in zip(recording.read_recording(path).arrivals, made_up.arrivals, strict=True)]
    assert came == pytest.approx([0.0, 0.25] * (len(came) // 2), abs=1e-9)


@pytest.mark.parametrize(
    ("harm", "code"),
    [
        (lambda lines: [*lines[:-1], lines[-1][:40]], "step-log-damaged"),
        (lambda lines: [line for line in lines if '"n": 9,' not in line], "recording-cut"),
        (lambda lines: [line for line in lines if '"kind": "request", "name": "3"' not in line], "recording-cut"),
        (lambda lines: [line.replace('"limit"', '"unlimited"') for line in lines], "step-log-damaged"),
        (lambda lines: [line.replace('"scheduling"', '"order"') for line in lines], "step-log-damaged"),
        (
            lambda lines: [line.replace('"kind": "step"', '"kind": "step", "why": []') for line in lines],
            "step-log-damaged",
        ),
        (lambda lines: ['{"timestamp": 27482, "input_length": 6955, "hash_ids": [46]}'], "recording-missing"),
        (lambda lines: [], "recording-missing"),
    ],
    ids=["cut", "step", "record", "number", "setting", "reason", "foreign", "empty"],
)
def test_a_harmed_or_foreign_recording_is_refused_by_one_error(
    harm: Callable[[list[str]], list[str]], code: str, made_up: Recording, tmp_path: Path
) -> None:
    path = written(tmp_path, made_up)
    path.write_text("".join(f"{line}\n" for line in harm(path.read_text().splitlines())))
    with lab_error(code):
        recording.read_recording(path)


def test_a_run_without_an_answer_has_no_figures(made_up: Recording) -> None:
    rows = [replace(row, made=[0] * row.batch) for row in made_up.steps]
    with lab_error("figures-none"):
        figures.figures(rows, {arrival.name: arrival.at for arrival in made_up.arrivals})


WRONG: tuple[Any, ...] = (None, -1, 1.5, 1e99, True, "", "many", [], [1], ["x"], {}, {"a": 1}, 2**70)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.night) for seed in range(1, 8))])
def test_a_line_with_any_field_missing_or_wrong_is_read_or_refused_by_one_error(
    seed: int, made_up: Recording, tmp_path: Path
) -> None:
    path, rng = written(tmp_path, made_up), random.Random(seed)
    whole, refused = [json.loads(line) for line in path.read_text().splitlines()], 0
    for _ in range(25):
        lines = copy.deepcopy(whole)
        line = rng.choice(lines)
        field = rng.choice(list(line))
        if isinstance(line[field], list) and line[field] and rng.random() < 0.5:
            line[field][0] = rng.choice(WRONG)
        elif rng.random() < 0.3:
            del line[field]
        else:
            line[field] = rng.choice(WRONG)
        path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        try:
            predictor = answer.Predictor.of(recording.read_recording(path))
            predictor.recorded()
            predictor.predict({})
        except LabError:
            refused += 1
    assert refused > 10


# -- replay -----------------------------------------------------------------------------------------------------------


def test_a_request_that_counts_from_its_sending_waited_for_triton_too(made_up: Recording) -> None:
    started = {a.name: a.at + 100 - 0.002 * number for number, a in enumerate(made_up.arrivals)}
    sent = replace(made_up, zero=100.0).since_sent(started)
    before, after = (
        figures.figures(one.steps, {a.name: a.at for a in one.arrivals})["e2e_mean_ms"] for one in (made_up, sent)
    )
    late = [2.0 * number for number in range(len(made_up.arrivals))]
    assert after - before == pytest.approx(sum(late) / len(late))
    assert min(a.at for a in sent.arrivals) == 0 and sent.zero == min(started.values())


def test_a_prompt_in_the_cache_is_found_in_the_replay_too(made_up: Recording) -> None:
    prefix = bytes(range(150)) * 2  # 100 tokens
    same = [replace(a, prompt=100, prefixes=prefix, after=50 * n) for n, a in enumerate(made_up.arrivals[:3])]
    settings = player.change_settings(SETTINGS, {"enable_kv_cache_reuse": "true"})
    rows = player.replay(Recording(SETTINGS, same), settings).steps
    assert [sum(row.cached) for row in rows if row.joined] == [0, 96, 96]


@pytest.mark.parametrize(
    ("assignments", "code", "said"),
    [
        ({"speculation": "draft"}, "setting-unpredictable", "speculation"),
        ({"model": "x"}, "setting-unpredictable", "model"),
        ({"max_num_sequences": "many"}, "settings-unpredictable", "many"),
        ({"scheduling": "random"}, "settings-unpredictable", "random"),
        ({"max_num_tokens": "2"}, "settings-unpredictable", "max_num_tokens: 2"),
        ({"enable_kv_cache_reuse": "yes"}, "settings-unpredictable", "yes"),
        ({"enable_chunked_context": "0"}, "settings-unpredictable", "enable_chunked_context=0"),
        ({"gpt_model_type": "V2"}, "setting-unpredictable", "V2"),
    ],
    ids=str,
)
def test_what_cannot_be_predicted_is_refused_by_name(assignments: dict[str, str], code: str, said: str) -> None:
    with lab_error(code, said):
        player.change_settings(SETTINGS, assignments)


def test_static_batching_admits_nothing_while_a_batch_runs(made_up: Recording) -> None:
    rows = player.replay(made_up, player.change_settings(SETTINGS, {"gpt_model_type": "V1"}), cost).steps
    assert all(row.joined == row.ids for row in rows if row.joined)


def test_a_client_with_two_requests_in_flight_never_has_three(made_up: Recording) -> None:
    rows = player.replay(made_up, SETTINGS, cost, in_flight=2).steps
    assert max(row.batch + len(row.waiting) for row in rows) == 2


# -- vLLM -------------------------------------------------------------------------------------------------------------

VLLM = replace(SETTINGS, words={**SETTINGS.words, "engine": "vllm"})


def test_what_vllm_refuses_cannot_be_predicted_of_a_recording_of_it() -> None:
    asked = {"max_num_seqs": "100", "max_num_batched_tokens": "64"}
    with lab_error("settings-unpredictable", "max_num_tokens: 64"):
        change_vllm_settings(VLLM, labs_names(VLLM, asked))


@pytest.mark.parametrize(
    "asked",
    [
        {"enable_prefix_caching": "yes"},
        {"enable_prefix_caching": ""},
        {"max_num_seqs": ""},
        {"long_prefill_token_threshold": "many"},
        {"long_prefill_token_threshold": "-5"},
    ],
    ids=str,
)
def test_a_value_of_another_kind_than_the_recorded_one_is_refused_and_not_taken_for_its_default(
    asked: dict[str, str],
) -> None:
    settings = replace(VLLM, words={**VLLM.words, "long_prefill_token_threshold": "0"})
    with lab_error("settings-unpredictable"):
        change_vllm_settings(settings, labs_names(settings, asked))


@pytest.mark.parametrize("word", ["True", "FALSE"])
def test_a_truth_is_taken_however_it_is_spelled(word: str) -> None:
    changed = change_vllm_settings(VLLM, labs_names(VLLM, {"enable_prefix_caching": word}))
    assert changed.reuse == (word == "True") and changed.words["enable_kv_cache_reuse"] == word.lower()


@pytest.mark.parametrize("share", ["inf", "nan", "0", "1.5", "-1"])
def test_a_share_of_the_memory_is_at_most_all_of_it(share: str) -> None:
    memory = {"gpu_memory_utilization": 0.9, "device_memory": 2**36, "block_bytes": 2**20}
    with lab_error("replay-refused", share):
        labs_names(replace(VLLM, recorded=memory), {"gpu_memory_utilization": share})


def test_a_recording_of_vllm_is_not_replayed_by_our_scheduler(made_up: Recording) -> None:
    with lab_error("replay-needs-vllm"):
        player.replay(made_up, VLLM)


@pytest.mark.parametrize(("own", "code"), [(None, "layer-missing"), ("vllm.json", "scheduler-not-vllms")])
def test_a_recording_of_vllm_needs_vllm_as_it_is(
    own: str | None, code: str, made_up: Recording, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LABS_CACHE", str(tmp_path))
    path = written(tmp_path, replace(made_up, settings=replace(VLLM, own=own)))
    with lab_error(code):
        CliRunner().invoke(predict_command, [str(path), "--set", "max_num_seqs=2"], catch_exceptions=False)


def test_a_step_that_was_decided_ahead_begins_when_the_one_before_it_is_over(
    made_up: Recording, tmp_path: Path
) -> None:
    """vLLM's asynchronous scheduler decides a step while the one before is computed: their times overlap in the log."""

    def ahead(line: dict[str, Any]) -> dict[str, Any]:
        return {**line, "dur": 2 * line["dur"]} if line["kind"] == "step" else line

    rows = recording.read_recording(changed(written(tmp_path, made_up), ahead)).steps
    assert all(row.began >= before.over for before, row in itertools.pairwise(rows))
    assert fit(rows).gap >= 0


# -- time -------------------------------------------------------------------------------------------------------------


def test_the_fitted_costs_are_those_with_which_the_steps_were_made(made_up: Recording) -> None:
    model = fit(made_up.steps)
    assert model.costs.costs == pytest.approx((2e-3, 0.0, 5e-4, 1e-4, 0.0, 0.0, 0.0, 0.0, 0.0), abs=1e-9)
    assert model.costs.bend is None and model.gap == pytest.approx(0.0, abs=1e-9)


def lasting(rows: list[Step], seconds: Callable[[Step], float]) -> list[Step]:
    """The steps as if each had taken so long, with nothing between them."""
    return [replace(row, began=0.0, over=seconds(row), busy=False) for row in rows]


def mean_error(rows: Sequence[Step], model: steptime.StepTime, phase: str, seconds: Callable[[Step], float]) -> float:
    """Of the steps of one phase: how much longer the model says that they take together, as a share."""
    timed = steptime.Timed(model)
    both = [(timed(row), seconds(row)) for row in rows]
    said, true = zip(*(pair for row, pair in zip(rows, both, strict=True) if row.phase == phase), strict=True)
    return float(sum(said) / sum(true) - 1)


def test_a_batch_shape_that_takes_longer_than_its_costs_say_is_predicted_as_it_was_recorded(made_up: Recording) -> None:
    def odd(row: Step) -> float:
        return cost(row) + 5e-3 * (row.phase == "dd")

    model = fit(lasting([*made_up.steps] * 20, odd))
    assert {phase: mean_error(made_up.steps, model, phase, odd) for phase in ("d", "dd", "dddd")} == pytest.approx(
        {"d": 0.0, "dd": 0.0, "dddd": 0.0}, abs=0.1
    )


def noisy(made_up: Recording, seed: int) -> steptime.StepTime:
    rng = random.Random(seed)
    return fit(lasting([*made_up.steps] * 10, lambda row: cost(row) * rng.uniform(0.7, 1.3)))


def test_short_steps_are_predicted_as_well_as_long_ones(made_up: Recording) -> None:
    assert mean_error(made_up.steps, noisy(made_up, 1), "d", cost) == pytest.approx(0.0, abs=0.03)


def test_no_cost_is_negative() -> None:
    rng = np.random.default_rng(3)
    x = np.c_[np.ones(50), rng.random((50, 2))]
    found = fitting.non_negative(x, x @ [1.0, 2.0, -3.0])
    assert (found >= 0).all() and found[1] > 0


def test_the_noise_floor_is_how_much_steps_of_one_shape_differ(made_up: Recording) -> None:
    rows = [replace(row, over=row.began + seconds) for row in [made_up.steps[0]] * 10 for seconds in (0.9, 1.0, 1.1)]
    assert fit(rows).noise == pytest.approx(0.1)


def test_a_larger_batch_than_was_recorded_is_extrapolated_and_marked(made_up: Recording) -> None:
    """The made-up steps cost what :func:`recordings.cost` says, at any size."""
    found = answer.Predictor.of(made_up).predict({"max_num_sequences": "30"})
    assert found.extrapolated.decoding == max(row.phase.count("d") for row in found.steps) > 4
    assert [row.over - row.began for row in found.steps] == pytest.approx([cost(row) for row in found.steps], rel=1e-3)


def test_strict_refuses_a_larger_batch_than_was_recorded(made_up: Recording) -> None:
    predictor = answer.Predictor.of(made_up, strict=True)
    predictor.predict({})
    with lab_error("prediction-extrapolated"):
        predictor.predict({"max_num_sequences": "30"})


def counts(decoding: int, prompt: int, context: int) -> StepCounts:
    return StepCounts(decoding, prompt, context, makes_tokens=True)


def interval(model: steptime.StepTime, counts: StepCounts) -> tuple[float, float]:
    """The edges of a step's time."""
    low, high = (model.seconds(counts, deviations=sign * steptime.DEVIATIONS) for sign in (-1, 1))
    return low, high


@pytest.fixture(scope="module")
def noisy_models(made_up: Recording) -> list[steptime.StepTime]:
    return [noisy(made_up, seed) for seed in range(10)]


@pytest.mark.parametrize("decoding", [8, 32, 128])
def test_the_interval_holds_the_true_time_and_widens_with_the_distance(
    noisy_models: list[steptime.StepTime], decoding: int
) -> None:
    shape = counts(decoding, 0, 0)
    true = 2e-3 + 5e-4 * decoding
    intervals = [interval(model, shape) for model in noisy_models]
    assert sum(low <= true <= high for low, high in intervals) >= 0.9 * len(intervals)
    (low, high), (nearer_low, nearer_high) = intervals[0], interval(noisy_models[0], counts(decoding // 2, 0, 0))
    assert high - low > nearer_high - nearer_low


def test_costs_that_always_occur_together_are_not_known_apart(made_up: Recording) -> None:
    """Where one request at a time decodes, eight may cost eight times as much, or nothing more."""
    one = Step(["a"], phase="d", tokens=[1], made=[1])
    model = fit(lasting([one] * 100, lambda row: 1e-2))
    low, high = interval(model, counts(8, 0, 1))
    assert low < 1.2e-2 and high > 5e-2
    assert model.seconds(counts(1, 0, 1), deviations=2.0) == pytest.approx(1e-2, rel=0.1)


def test_the_times_of_a_paced_server_are_those_of_its_device_at_any_size(made_up: Recording) -> None:
    words = {**SETTINGS.words, "pace": "h100", "pace_shape": "llama-2-7b", "pace_slower": "10"}
    paced = replace(made_up, settings=replace(SETTINGS, words=words))
    found = answer.Predictor.of(paced, strict=True).predict({"max_num_sequences": "30"})
    weights_s = 10 * 2 * SHAPES["llama-2-7b"].parameters / DEVICES["h100"].bandwidth
    decoding = [row.over - row.began for row in found.steps if set(row.phase) == {"d"}]
    assert weights_s < min(decoding) and max(decoding) < 1.3 * weights_s, "the rest is for keys and values"
    assert not found.extrapolated.steps


@pytest.mark.parametrize("steps", [1, steptime.LEAST - 1])
def test_a_short_recording_is_answered_with_the_times_of_a_device_and_refused_without(
    made_up: Recording, steps: int
) -> None:
    predictor = answer.Predictor.of(replace(made_up, steps=made_up.steps[:steps]))
    with lab_error("steps-too-few", steps):
        predictor.predict({})
    device = {"pace": "h100", "pace_shape": "llama-2-7b", "pace_slower": "1"}
    assert predictor.predict(device).figures["requests_per_s"] > 0


def test_a_recording_is_timed_by_a_device_that_it_was_not_made_on(made_up: Recording) -> None:
    words = {"pace": "measured", "pace_table": "step:4,prompts:16", "pace_slower": "2"}
    rows = answer.Predictor.of(made_up).predict(words).steps
    took = {"p" in row.phase: row.over - row.began for row in rows}
    assert took == {False: pytest.approx(0.008), True: pytest.approx(0.04)}


def test_the_recorded_settings_are_predicted_to_take_the_recorded_time(made_up: Recording) -> None:
    predictor = answer.Predictor.of(made_up)
    found, seen = predictor.predict({}).figures, predictor.recorded()
    assert found == pytest.approx(seen, rel=1e-6)


def test_a_server_that_stood_still_between_two_steps_once_is_not_predicted_to_do_so_after_each(
    made_up: Recording,
) -> None:
    """For three seconds, after its fiftieth step."""
    assert made_up.steps[50].busy
    since = made_up.steps[49].over
    steps = [
        replace(row, began=row.began + 3, over=row.over + 3) if row.began >= since else row for row in made_up.steps
    ]
    arrivals = [one.moved(one.at + 3) if one.at >= since else one for one in made_up.arrivals]
    predictor = answer.Predictor.of(replace(made_up, steps=steps, arrivals=arrivals))
    assert predictor.model.gap == pytest.approx(fit(made_up.steps).gap, abs=1e-6)
    found = predictor.predict({})
    assert found.low["ttft_p99_ms"] <= found.figures["ttft_p99_ms"] <= found.high["ttft_p99_ms"]


class Held:
    """A machine that computes nothing in `pauses`, each its beginning and its length in seconds."""

    def __init__(self, pauses: Sequence[tuple[float, float]]) -> None:
        self._pauses = sorted(pauses)

    def __call__(self, row: Step) -> float:
        over = row.began + cost(row)
        for began, length in self._pauses:
            if began < over and began + length > row.began:
                over += began + length - max(began, row.began)
        return over - row.began


def held_up(pauses: Sequence[tuple[float, float]]) -> Recording:
    """150 requests in five seconds on such a machine."""
    arrivals = [replace(one, at=one.at * 6) for one in some_requests(150, seed=3)]
    done = player.replay(Recording(SETTINGS, arrivals), SETTINGS, Held(pauses))
    return Recording(SETTINGS, arrivals, done.steps)


@hypothesis.settings(max_examples=3)
@given(st.lists(st.tuples(st.floats(0, 5), st.floats(0.01, 1)), max_size=5))
def test_whatever_held_the_machine_up_the_recorded_settings_are_predicted_as_recorded(
    pauses: list[tuple[float, float]],
) -> None:
    predictor = answer.Predictor.of(held_up(pauses))
    found, seen = predictor.predict({}).figures, predictor.recorded()
    for name in ("ttft_p50_ms", "ttft_p99_ms", "tpot_p99_ms", "e2e_p99_ms", "requests_per_s"):
        assert found[name] == pytest.approx(seen[name], rel=0.02), name


@pytest.mark.parametrize("slots", ["8", pytest.param("16", marks=pytest.mark.night)])
def test_a_machine_that_stood_still_stands_still_under_other_settings_too(slots: str) -> None:
    """More slots do not help against it. Of other arrivals, that do not meet these moments, it is not predicted."""
    pauses = [(1.0, 0.5), (2.5, 0.8)]
    recorded = held_up(pauses)
    wanted = {"max_num_sequences": slots}
    true = player.replay(recorded, player.change_settings(SETTINGS, wanted), Held(pauses))
    seen = figures.figures(true.steps, true.arrived)["ttft_p99_ms"]
    predictor = answer.Predictor.of(recorded)
    assert predictor.predict(wanted).figures["ttft_p99_ms"] == pytest.approx(seen, rel=0.03)
    assert predictor.predict(wanted, recorded).figures["ttft_p99_ms"] < seen / 10


def test_more_slots_never_meet_fewer_limits_and_the_plan_names_the_smallest(made_up: Recording) -> None:
    predictor = answer.Predictor.of(made_up, slo=Slo.parse("ttft<200ms,tpot<20ms"))
    slots, knee = predictor.slots_enough(4.0).value, predictor.knee().value
    assert slots and knee

    def share(slots: int) -> float:
        return predictor.good_share(4.0, 1, {"max_num_sequences": str(slots)}).good

    assert share(int(slots)) >= answer.ENOUGH and (slots == 1 or share(int(slots) - 1) < answer.ENOUGH)
    assert predictor.good_share(knee).good >= answer.ENOUGH


def test_the_smallest_setting_is_found_by_doubling_and_halving_and_each_try_is_told(made_up: Recording) -> None:
    tried = list[str]()
    predictor = replace(answer.Predictor.of(made_up, slo=Slo.parse("ttft<200ms,tpot<20ms")), tell=tried.append)
    found = predictor.slots_enough(4.0)
    assert found.value and f"{found.value:.0f} slots" in tried
    assert len(tried) == len({*tried}) <= 2 * math.log2(2 * len(made_up.arrivals))


def test_a_plan_replays_nothing_twice_and_tries_no_slots_that_nobody_used(made_up: Recording) -> None:
    asked = list[tuple[int, list[float]]]()

    def replayed(recording: Recording, settings: Any, *more: Any, **seen: Any) -> player.ReplayResult:
        asked.append((int(settings.words["max_num_sequences"]), [arrival.at for arrival in recording.arrivals]))
        done = player.replay(recording, settings, *more, **seen)
        assert len(done.steps) <= 1 or not seen, "no step is kept that a plan has seen"
        return done

    wide = replace(made_up, settings=player.change_settings(SETTINGS, {"max_num_sequences": "30"}))
    predictor = replace(answer.Predictor.of(wide, slo=Slo.parse("ttft<200ms,tpot<20ms")), replayed=replayed)
    prediction.plan_document(predictor, 4.0, "ttft<200ms,tpot<20ms")
    assert all(asked.count(one) == 1 for one in asked)
    (first, _), (second, _), *_ = asked
    assert first == 30 and second < 15, "at 4 a second fewer than half of them are ever used"


# -- requests that left -----------------------------------------------------------------------------------------------


def test_an_answer_that_was_cut_for_what_it_said_has_as_many_tokens_under_any_setting() -> None:
    """vLLM's front end cancels a request at its stop string: that is not later where the request was faster."""
    slow = replace(SETTINGS, words={**SETTINGS.words, "max_num_sequences": "2"})
    sent = [recordings.request(f"{n}", 0.02 * n, 20, 5 + 3 * (n % 9)) for n in range(40)]
    made = recordings.recorded(sent, slow)
    over = {name: row.over for row in made.steps for name in row.ended}
    cut = [replace(one, limit=200, why="cancelled", left_at=over[one.name]) for one in sent]
    fast = player.change_settings(SETTINGS, {"max_num_sequences": "16"})
    rows = player.replay(replace(made, arrivals=player.ended_by_text(cut)), fast, cost).steps
    tokens = Counter(name for row in rows for name, count in zip(row.ids, row.made, strict=True) if count)
    assert tokens == {one.name: one.made for one in sent}


def test_clients_that_leave_after_the_same_time_leave_after_it_whenever_they_came() -> None:
    patient = [replace(recordings.request(f"{n}", 0.05 * n, 20, 200), why="cancelled", made=3) for n in range(20)]
    left = [replace(one, left_at=one.at + 0.3) for one in patient]
    assert player.ended_by_text(left) == left
    later = [one.moved(one.at + 5.0) for one in left]
    rows = player.replay(Recording(SETTINGS, later), SETTINGS, cost).steps
    last = {name: row.over for row in rows for name in row.ids}
    longest = max(row.over - row.began for row in rows)
    assert all(last[one.name] <= one.at + 0.3 + 2 * longest for one in later)
    assert max(last[one.name] - one.at for one in later) > 0.25


def impatient() -> Recording:
    """Forty requests at once on four slots; the client of every second one leaves after 50 ms."""
    sent = [recordings.request(f"{n}", 1e-4 * n, 20, 20) for n in range(40)]
    sent = [replace(one, why="cancelled", left_at=one.at + 0.05) if n % 2 else one for n, one in enumerate(sent)]
    made = recordings.recorded(sent)
    tokens = Counter(name for step in made.steps for name, count in zip(step.ids, step.made, strict=True) if count)
    return replace(made, arrivals=[replace(one, made=tokens[one.name]) for one in sent])


def test_a_request_that_got_no_token_is_counted_and_is_not_good() -> None:
    made = impatient()
    lost = [one.name for one in made.arrivals if not one.made]
    assert 5 <= len(lost) <= 20
    seen = figures.figures(made.steps, {one.name: one.at for one in made.arrivals}, Slo(ttft=1e6))
    assert seen["without_token"] == len(lost) and seen["good_share"] == 1 - len(lost) / 40
    predictor = answer.Predictor.of(made, slo=Slo(tpot=1e6))
    assert predictor.good_share(1e4).good < answer.ENOUGH, "at this rate they leave again"
    assert predictor.good_share(1.0).good == 1.0


# -- the commands -----------------------------------------------------------------------------------------------------


def test_the_recording_that_was_read_is_named_where_a_folder_holds_others(made_up: Recording, tmp_path: Path) -> None:
    settings = recordings.vllm_settings(slots=4, blocks=200)
    for number, started in enumerate(("20261127-140000000", "20261128-140000000")):
        recordings.written_by_vllm(tmp_path, replace(made_up, settings=settings), rank=number, started=started)
    os.utime(tmp_path / "vllm-20261127-140000000-4000-0.000001.jsonl", (1, 1))
    read = recording.read_recording(tmp_path)
    ours = replace(read, settings=replace(SETTINGS, recorded=settings.recorded))
    predictor = answer.Predictor.of(ours, slo=Slo(ttft=500))
    for document, remarks in (
        (one := prediction.prediction_document(predictor, {}, {}), prediction.prediction_remarks(one)),
        (many := prediction.plan_document(predictor, 4.0, "ttft<500ms"), prediction.plan_remarks(predictor, many)),
    ):
        assert document["recording"] == "vllm-20261128-140000000-4001-1"
        assert document["others"] == ["vllm-20261127-140000000-4000-0"]
        assert document["recording"] in remarks[0] and document["others"][0] in remarks[0]
    (tmp_path / "b").mkdir()
    recordings.written_by_vllm(tmp_path / "b", replace(made_up, settings=settings))
    (remark,) = compare([tmp_path, tmp_path / "b"]).remarks
    assert read.name and read.name in remark and "vllm-20261127-140000000-4000-0" in remark


def test_predict_prints_the_recorded_the_predicted_and_the_noise_floor(made_up: Recording, tmp_path: Path) -> None:
    path = written(tmp_path, made_up)
    done = CliRunner().invoke(predict_command, [str(path), "--set", "max_num_sequences=2"], catch_exceptions=False)
    assert "ttft_p50_ms" in done.output and "noise floor" in done.output, done.output
    done = CliRunner().invoke(predict_command, [str(path), "--set", "max_num_sequences=2", "--json"])
    document = json.loads(done.output)
    assert document["predicted"]["mean_batch"] <= 2 < document["recorded"]["mean_batch"]


def test_a_sweep_has_a_column_for_each_value_and_a_line_for_each_without_an_answer(
    made_up: Recording, tmp_path: Path
) -> None:
    arguments = [str(written(tmp_path, made_up)), "--sweep", "max_num_sequences=1,2,none,30"]
    found = json.loads(CliRunner().invoke(predict_command, [*arguments, "--json"]).output)
    assert {*found["refused"]} == {"none"}
    one, two, many = (found["predicted"][value]["steps"] for value in ("1", "2", "30"))
    assert one > two > many
    assert found["extrapolated"]["2"] is None and found["extrapolated"]["30"]["steps"] > 0
    shown = CliRunner().invoke(predict_command, arguments).output
    assert "no answer for max_num_sequences=none" in shown and "extrapolated steps" in shown


def test_without_labctl_the_same_answers_are_there(
    made_up: Recording, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(written(tmp_path, made_up))
    assert module(["predict", path, "--set", "max_num_sequences=2", "--json"]) == 0
    alone = json.loads(capsys.readouterr().out)
    done = CliRunner().invoke(predict_command, [path, "--set", "max_num_sequences=2", "--json"])
    assert alone["predicted"] == json.loads(done.stdout)["predicted"]
    assert module(["plan", path, "--slo", "ttft<500ms", "--rate", "4"]) == 0
    assert "max_num_sequences=" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [
        ["plan", "--slo", "ttft<500ms", "--rate", "0"],
        ["plan", "--slo", "ttft<500ms", "--rate", "nan"],
        ["predict", "--in-flight", "-1"],
    ],
    ids=" ".join,
)
def test_without_labctl_a_number_that_means_nothing_is_wrong_usage(words: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        module([*words, "results"])
    assert caught.value.code == 2


def test_without_labctl_a_setting_without_a_value_is_refused(
    made_up: Recording, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert module(["predict", str(written(tmp_path, made_up)), "--set", "max_num_sequences"]) == 1
    assert "max_num_sequences" in capsys.readouterr().err


def test_without_vllm_its_recordings_are_not_predicted(
    made_up: Recording, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, replace(made_up, settings=VLLM))
    assert module(["predict", str(path), "--set", "max_num_seqs=2"]) == 1
    assert "vLLM is not installed here" in capsys.readouterr().err


def test_plan_names_a_setting_a_number_of_replicas_and_the_knee(made_up: Recording, tmp_path: Path) -> None:
    path = written(tmp_path, made_up)
    done = CliRunner().invoke(plan_command, [str(path), "--slo", "ttft<500ms", "--rate", "4", "--json"])
    found = json.loads(done.stdout)
    assert found["replicas"] == 1 and 1 <= found["max_num_sequences"] <= 4 and found["knee_per_s"] > 4


def test_a_recording_too_short_to_have_a_knee_says_that_it_is_higher(made_up: Recording) -> None:
    """Three requests, which are within the limits even if all come at once; thirty are not."""
    few = replace(made_up, arrivals=made_up.arrivals[:3])
    for recorded, higher in ((few, True), (made_up, False)):
        predictor = answer.Predictor.of(recorded, slo=Slo(ttft=60.0))
        document = prediction.plan_document(predictor, 4.0, "ttft<60ms")
        assert (document["knee_per_s"] > 0.98 * document["tried"]["knee_per_s"]) == higher
        assert (" over " in prediction.plan_lines(predictor, document)[-1]) == higher


@pytest.mark.parametrize(
    ("more", "said"), [(["--sweep", "max_num_tokens=8"], "--sweep"), (["--scheduler"], "--scheduler")]
)
def test_run_measures_one_prediction_of_the_shipped_scheduler(
    more: list[str], said: str, made_up: Recording, tmp_path: Path
) -> None:
    own = [str(written(tmp_path, made_up))] if more == ["--scheduler"] else []
    done = CliRunner().invoke(predict_command, [str(written(tmp_path, made_up)), "--run", *more, *own])
    assert done.exit_code == 2
    assert f"leave out {said}" in done.output
