"""A GPU in slow motion: the roofline against numbers worked out by hand, and the scheduler that waits for it."""

from __future__ import annotations

import random
import time
from dataclasses import replace

import pytest
from counting_engine import CountingEngine
from hypothesis import given, settings
from hypothesis import strategies as st
from lab_errors import lab_error

from labsched.costs import StepCosts, StepCounts
from labsched.kv_budget import KVBudget
from labsched.pace import SHAPES, Pace
from labsched.policy import Policy
from labsched.replay.fitting import measure_device
from labsched.request import Request
from labsched.scheduler import Scheduler
from labsched.step import Step


def paced(device: str = "h100", shape: str = "llama-2-7b", slower: float = 1.0) -> Pace:
    pace = Pace.of(device, shape, str(slower))
    assert pace
    return pace


@pytest.mark.parametrize(
    ("shape", "published", "embeddings", "kv_bytes"),
    [("llama-2-7b", 6_738_415_616, 32_000 * 4096, 2**19), ("llama-3.1-8b", 8_030_261_248, 128_256 * 4096, 2**17)],
)
def test_a_shape_has_the_published_parameters_without_embeddings_and_norms(
    shape: str, published: int, embeddings: int, kv_bytes: int
) -> None:
    assert SHAPES[shape].parameters == published - embeddings - 65 * 4096  # two norms a layer, and the last
    assert SHAPES[shape].kv_values * 2 == kv_bytes


def test_a_decode_step_takes_as_long_as_weights_and_keys_and_values_need_to_be_read() -> None:
    # 13.214 GB of weights and 1,000 x 0.5 MiB at 3.35 TB/s
    assert paced().seconds([1], [1000]) == pytest.approx((13.214154752e9 + 1000 * 2**19) / 3.35e12)
    assert paced("h200").seconds([1], [1000]) == pytest.approx((13.214154752e9 + 1000 * 2**19) / 4.8e12)


def test_a_long_prompt_takes_as_long_as_its_arithmetic() -> None:
    # 2 operations a weight, and for the scores 4 x 32 layers x 4096 for each of 1000 x 1001 / 2 pairs of tokens
    flops = 2 * 6.607077376e9 * 1000 + 4 * 32 * 4096 * 1000 * 1001 / 2
    assert paced().seconds([1000], [1000]) == pytest.approx(flops / 989.4e12 + 1000 * 2**19 / 3.35e12)


def test_two_pieces_of_a_prompt_need_the_arithmetic_of_the_whole() -> None:
    pace, alone = paced(), paced().seconds([4000], [4000])
    pieces = pace.seconds([2000], [2000]) + pace.seconds([2000], [4000])
    assert pieces - 2000 * 2**19 / 3.35e12 == pytest.approx(alone)  # the first half's keys and values are read again


def test_a_batch_of_64_short_requests_costs_little_more_than_one() -> None:
    assert paced().seconds([1] * 64, [100] * 64) < 1.3 * paced().seconds([1], [100])


def test_a_step_without_tokens_takes_no_time() -> None:
    assert paced().seconds([0], [50]) == 0


@pytest.mark.parametrize("words", [("h100", "gpt-9"), ("a100", "llama-2-7b")])
def test_an_unknown_pace_is_refused_with_those_that_are_known(words: tuple[str, str]) -> None:
    with pytest.raises(ValueError, match="h100, h200, h100-measured, measured; llama-2-7b"):
        Pace.of(*words, "1")
    assert Pace.of("none", "", "") is None


def test_the_scheduler_gives_each_step_the_time_of_its_own_work() -> None:
    scheduler = Scheduler(CountingEngine(step_tokens=20), KVBudget(64, 2), Policy.GUARANTEED_NO_EVICT, 4, False)
    scheduler.pace = paced(slower=3.0)
    for name, prompt in (("a", 10), ("b", 3)):
        scheduler.submit(Request(name, [0] * prompt, 3))
    began = time.monotonic()
    steps = [scheduler.step() for _ in range(3)]
    paced_us = [step.paced_us or 0 for step in steps]
    assert time.monotonic() - began >= sum(paced_us) / 1e6 - 1e-5
    work = [([10, 3], [10, 3]), ([1, 1], [11, 4]), ([1, 1], [12, 5])]
    assert paced_us == [round(3e6 * paced().seconds(*one)) for one in work]


NUMBER = st.floats(0.001, 500).map(lambda number: float(f"{number:.3g}"))
COSTS = st.builds(
    lambda numbers, bend: StepCosts(**{name: ms / 1e3 for name, ms in numbers.items()}, bend=bend),
    st.dictionaries(st.sampled_from(("step", "prompts", "decoding", "token", "context")), NUMBER, min_size=1),
    st.none() | NUMBER,
)


@given(COSTS)
def test_costs_are_the_line_of_text_that_they_are_written_as(costs: StepCosts) -> None:
    read = StepCosts.of(costs.text)
    assert read.text == costs.text
    assert read.costs == pytest.approx(costs.costs, rel=1e-9) and read.bend == costs.bend


@given(COSTS, st.integers(0, 200), st.integers(0, 9000), st.integers(0, 99_999))
def test_a_step_is_the_longer_of_a_floor_and_a_line(costs: StepCosts, decoding: int, prompt: int, context: int) -> None:
    """Worked out as a maximum, as a roofline is drawn; and without a bend as a sum."""
    fixed = costs.step + costs.prompts * (prompt > 0) + costs.decoding * decoding + costs.context * context
    line = costs.token * (prompt if costs.bend is None else decoding + prompt - costs.bend)
    assert costs.seconds(StepCounts(decoding, prompt, context)) == pytest.approx(max(fixed, fixed + line))


@pytest.mark.parametrize(
    "text",
    ["", "none", "step", "step:", "step:x", "step:nan", "step:-1", "step:inf", "steps:1", "step:1,step:2", "1:6/2:7"],
)
def test_a_line_that_is_no_costs_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="pace_table"):
        Pace.of("measured", "", "1", text)


def test_the_measured_h100_takes_what_its_recorded_steps_took() -> None:
    """Median milliseconds of recorded steps by their tokens, without what the context costs (docs/develop/figures.md).

    One size is 16 % off, because no bend says that 1,829 tokens took nearly as long as 2,500 by the others.
    """
    decode = {1: 6.135, 8: 6.417, 22: 6.488, 64: 7.105, 95: 7.455}
    prompts = {409: 38.02, 1015: 38.38, 1344: 37.57, 1829: 62.42, 3062: 78.78, 6659: 172.0, 7167: 185.4}
    pace = paced("h100-measured", "")
    for requests, ms in decode.items():
        assert 1e3 * pace.costs.seconds(StepCounts(requests)) == pytest.approx(ms, rel=0.03)
    for tokens, ms in prompts.items():
        assert 1e3 * pace.costs.seconds(StepCounts(0, tokens)) == pytest.approx(
            ms, rel=0.17 if tokens == 1829 else 0.08
        )


def rows_of(costs: StepCosts, ahead: bool) -> list[Step]:
    """Prompts of several sizes, and after each two of them sixty decoding steps, of four requests or of two.

    Where the next step is launched ahead, the host notices the end of the step before a prompt late, and so that much
    of the prompt's time stands beside that step.
    """
    rows: list[Step] = []
    for turn in range(12):
        names = [f"{turn}-{number}" for number in range(4)]
        steps = [(names[:1], [60 * (turn + 1)]), (names, [1, *[20 * (turn + 1)] * 3]), *[(names, [1] * 4)] * 30]
        steps += [(names[:2], [1] * 2)] * 30
        context = dict.fromkeys(names, 0)
        for batch, tokens in steps:
            for name, count in zip(batch, tokens, strict=True):
                context[name] += count
            phase = "".join("d" if count == 1 else "p" for count in tokens)
            decoding, seen = tokens.count(1), sum(context[name] for name in batch)
            seconds = costs.seconds(StepCounts(decoding, sum(tokens) - decoding, seen))
            joined = [name for name in batch if context[name] == tokens[batch.index(name)]]
            engine_us = round(1e6 * seconds)
            rows.append(Step(batch, phase=phase, tokens=tokens, joined=joined, engine_us=engine_us, busy=bool(rows)))
    if ahead:
        late = [round(0.7 * took(row)) if "p" in row.phase else 0 for row in rows] + [0]
        for place, row in enumerate(rows):
            row.engine_us = took(row) + late[place + 1] - (late[place] if place else 0)
    return rows


def took(row: Step) -> int:
    assert row.engine_us is not None
    return row.engine_us


BENT = StepCosts(step=5e-3, prompts=25e-3, decoding=4e-4, token=6e-5, context=2e-7, bend=300.0)


@pytest.mark.parametrize("ahead", [False, True])
def test_a_recording_gives_the_costs_and_the_bend_that_its_steps_were_made_of(ahead: bool) -> None:
    rows = rows_of(BENT, ahead)
    found = measure_device(rows)
    assert found.costs.costs == pytest.approx(BENT.costs, rel=0.02, abs=1e-9)
    assert found.costs.bend == pytest.approx(300.0, rel=0.02)
    assert found.took_s == pytest.approx(sum(map(took, rows)) / 1e6)
    assert found.said_s == pytest.approx(found.took_s, rel=0.01)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**32), st.floats(0.0, 2.0))
def test_whatever_the_machine_did_beside_it_a_recording_gives_costs(seed: int, sigma: float) -> None:
    chance = random.Random(seed)
    rows = [
        replace(row, engine_us=round(took(row) * chance.lognormvariate(0.0, sigma)))
        for row in rows_of(BENT, ahead=False)
    ]
    found = measure_device(rows)
    assert StepCosts.of(found.costs.text) == found.costs


@pytest.mark.parametrize("phase", ["p", "d"])
def test_a_recording_of_one_kind_of_step_makes_no_device(phase: str) -> None:
    with lab_error("device-unmeasured"):
        measure_device([row for row in rows_of(BENT, False) if ("p" in row.phase) == (phase == "p")])


@pytest.mark.parametrize("slower", ["nan", "inf", "0", "-1", "x"])
def test_a_factor_that_is_no_number_above_0_is_refused(slower: str) -> None:
    with pytest.raises(ValueError, match=slower):
        Pace.of("h100", "llama-2-7b", slower)
