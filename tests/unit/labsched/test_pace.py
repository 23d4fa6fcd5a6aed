"""A GPU in slow motion: the roofline against numbers worked out by hand, and the scheduler that waits for it."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
from counting_engine import CountingEngine
from hypothesis import assume, given
from hypothesis import strategies as st
from lab_errors import lab_error

from labsched.kv_budget import KVBudget
from labsched.measured import measure_device
from labsched.pace import MEASURED, SHAPES, DeviceTable, Knots, Pace, StepWork, interpolate
from labsched.policy import Policy
from labsched.recording import StepRow
from labsched.request import Request
from labsched.scheduler import Scheduler


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
    assert paced().seconds([StepWork(1, 1000)]) == pytest.approx((13.214154752e9 + 1000 * 2**19) / 3.35e12)
    assert paced("h200").seconds([StepWork(1, 1000)]) == pytest.approx((13.214154752e9 + 1000 * 2**19) / 4.8e12)


def test_a_long_prompt_takes_as_long_as_its_arithmetic() -> None:
    # 2 operations a weight, and for the scores 4 x 32 layers x 4096 for each of 1000 x 1001 / 2 pairs of tokens
    flops = 2 * 6.607077376e9 * 1000 + 4 * 32 * 4096 * 1000 * 1001 / 2
    assert paced().seconds([StepWork(1000, 1000)]) == pytest.approx(flops / 989.4e12 + 1000 * 2**19 / 3.35e12)


def test_two_pieces_of_a_prompt_need_the_arithmetic_of_the_whole() -> None:
    pace, alone = paced(), paced().seconds([StepWork(4000, 4000)])
    pieces = pace.seconds([StepWork(2000, 2000)]) + pace.seconds([StepWork(2000, 4000)])
    assert pieces - 2000 * 2**19 / 3.35e12 == pytest.approx(alone)  # the first half's keys and values are read again


def test_a_batch_of_64_short_requests_costs_little_more_than_one() -> None:
    assert paced().seconds([StepWork(1, 100)] * 64) < 1.3 * paced().seconds([StepWork(1, 100)])


def test_a_step_without_tokens_takes_no_time() -> None:
    assert paced().seconds([StepWork(0, 50)]) == 0


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
    assert time.monotonic() - began >= sum(step.paced_s or 0.0 for step in steps)
    work = [[StepWork(10, 10), StepWork(3, 3)], [StepWork(1, 11), StepWork(1, 4)], [StepWork(1, 12), StepWork(1, 5)]]
    assert [step.paced_s for step in steps] == pytest.approx([3 * paced().seconds(one) for one in work])


KNOTS = st.dictionaries(st.integers(1, 9999), st.floats(0, 500), min_size=1, max_size=9).map(
    lambda found: tuple(sorted((float(size), float(f"{ms:.3g}") / 1e3) for size, ms in found.items()))
)


@given(KNOTS, KNOTS, st.floats(0, 1))
def test_a_table_is_the_line_of_text_that_it_is_written_as(decode: Knots, prompt: Knots, token_us: float) -> None:
    line = DeviceTable(decode, prompt, float(f"{token_us:.3g}") / 1e6).text
    read = DeviceTable.of(line)
    assert read.text == line
    assert [size for size, _ in read.decode] == [size for size, _ in decode]
    assert [s for _, s in read.prompt] == pytest.approx([s for _, s in prompt], rel=1e-3)


@given(KNOTS, KNOTS, st.lists(st.tuples(st.integers(1, 4000), st.integers(1, 4000)), min_size=1))
def test_a_step_takes_what_lies_between_the_measured_ones(
    decode: Knots, prompt: Knots, work: list[tuple[int, int]]
) -> None:
    tokens = sum(computed for computed, _ in work)
    knots = decode if all(computed == 1 for computed, _ in work) else prompt
    sizes, seconds = zip(*knots, strict=True)
    assume(tokens <= sizes[-1])
    expected = np.interp(tokens, sizes, seconds) + 2e-7 * sum(context for _, context in work)
    table = DeviceTable(decode, prompt, 2e-7)
    assert Pace(table, MEASURED, 1.0).seconds(map(StepWork._make, work)) == pytest.approx(expected)


def test_beyond_the_largest_measured_step_the_last_line_goes_on() -> None:
    assert interpolate(((512, 0.03), (1024, 0.05)), 2048) == pytest.approx(0.05 + 2 * 0.02)


@pytest.mark.parametrize(
    "text", ["", "none", "1:6/2:7", "2:6,1:7/9:9/0", "1:6/9:nan/0", "1:6/0:9/0", "1:6/9:-1/0", "1/9:1/0"]
)
def test_a_line_that_is_no_table_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="pace_table"):
        Pace.of("measured", "", "1", text)


def rows_of(table: DeviceTable, ahead: bool) -> list[StepRow]:
    """Two prompts beside each other, then sixty decoding steps of four requests or of two; several times over.

    Where the next step is launched ahead, the host notices the end of the step before a prompt late, and so that much
    of the prompt's time stands beside that step.
    """
    rows: list[StepRow] = []
    for turn in range(4):
        names = [f"{turn}-{number}" for number in range(4)]
        steps = [(names[:1], [300 + turn]), (names, [1, *[100 + turn] * 3]), *[(names, [1] * 4)] * 30]
        steps += [(names[:2], [1] * 2)] * 30
        context = dict.fromkeys(names, 0)
        for batch, tokens in steps:
            for name, count in zip(batch, tokens, strict=True):
                context[name] += count
            seen = sum(context[name] for name in batch)
            phase = "".join("d" if count == 1 else "p" for count in tokens)
            knots = table.prompt if "p" in phase else table.decode
            sizes, times = np.array(knots).T
            seconds = float(np.interp(sum(tokens), sizes, times)) + table.token_s * seen
            joined = [name for name in batch if context[name] == tokens[batch.index(name)]]
            row = StepRow(list(batch), phase, list(tokens), [], [0] * len(batch), joined, [], set(), [], 0)
            rows.append(replace(row, engine_s=seconds, busy=bool(rows)))
    if ahead:
        late = [0.7 * took(row) if "p" in row.phase else 0.0 for row in rows] + [0.0]
        for place, row in enumerate(rows):
            row.engine_s = took(row) + late[place + 1] - (late[place] if place else 0.0)
    return rows


def took(row: StepRow) -> float:
    assert row.engine_s is not None
    return row.engine_s


@pytest.mark.parametrize("ahead", [False, True])
def test_a_recording_gives_the_table_that_its_steps_were_made_of(ahead: bool) -> None:
    made = DeviceTable(((2, 0.005), (4, 0.006)), ((300, 0.030), (600, 0.060)), 2e-7)
    rows = rows_of(made, ahead)
    found = measure_device(rows)
    assert found.table.token_s == pytest.approx(made.token_s, rel=1e-3)
    assert dict(found.table.decode) == pytest.approx({2.0: 0.005, 4.0: 0.006}, rel=1e-3)
    assert all(
        seconds == pytest.approx(interpolate(made.prompt, size), rel=0.01) for size, seconds in found.table.prompt
    )
    assert found.took_s == pytest.approx(sum(map(took, rows)))
    assert found.said_s == pytest.approx(found.took_s, rel=0.01)


@given(st.data())
def test_whatever_the_machine_did_beside_it_a_recording_gives_a_table(data: st.DataObject) -> None:
    rows = rows_of(DeviceTable(((2, 0.005), (4, 0.006)), ((300, 0.030), (600, 0.060)), 2e-7), ahead=False)
    noise = data.draw(st.lists(st.floats(0.01, 10), min_size=len(rows), max_size=len(rows)))
    found = measure_device([replace(row, engine_s=took(row) * by) for row, by in zip(rows, noise, strict=True)])
    assert DeviceTable.of(found.table.text) == found.table


@pytest.mark.parametrize("phase", ["p", "d"])
def test_a_recording_of_one_kind_of_step_makes_no_table(phase: str) -> None:
    rows = rows_of(DeviceTable(((2, 0.005),), ((300, 0.03),), 0.0), False)
    with lab_error("device-unmeasured"):
        measure_device([row for row in rows if ("p" in row.phase) == (phase == "p")])


@pytest.mark.parametrize("slower", ["nan", "inf", "0", "-1", "x"])
def test_a_factor_that_is_no_number_above_0_is_refused(slower: str) -> None:
    with pytest.raises(ValueError, match=slower):
        Pace.of("h100", "llama-2-7b", slower)
