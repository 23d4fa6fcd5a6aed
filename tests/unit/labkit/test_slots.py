"""The slot timeline: every line of Triton's log is read for what it says, and the two witnesses are compared."""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import Any

import pytest
from lab_errors import lab_error

from labkit.evidence import slot_picture, slots
from labkit.evidence.slots import Execution, Timeline
from labsched.step import Step

SCHEDULER = "3430 sequence_batch_scheduler.cc:857]"
UNNAMED = "[request id: <id_unknown>]"


def line(at: float, text: str) -> str:
    """A line as Triton 2.51 writes it, ``at`` seconds after twelve."""
    return f'I1121 12:00:{at:09.6f} {SCHEDULER} "{text}"'


def events(*lines: tuple[float, str]) -> list[slots.SlotEvent]:
    return [event for at, text in lines if (event := slots.parse_slot_event(line(at, text), "tokenizer"))]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Enqueuing CORRID 1001 into batcher tokenizer_0_0, sequence slot 2: tokenizer", ("enter", "1001", "0_0", 2)),
        (f"{UNNAMED} CORRID 1001 reusing batcher tokenizer_1_0, slot 0: tokenizer", ("enter", "1001", "1_0", 0)),
        ("Enqueuing CORRID c 7 into batcher tokenizer_0_0, sequence slot 1: tokenizer", ("enter", "c 7", "0_0", 1)),
        ("Enqueuing CORRID 1005 into new backlog: tokenizer", ("wait", "1005", "", None)),
        ("Enqueuing CORRID 1005 into existing backlog: tokenizer", ("wait", "1005", "", None)),
        (f"{UNNAMED} End sequence CORRID 1001 in batcher tokenizer_0_0, slot 2", ("end", "1001", "0_0", 2)),
        (f"{UNNAMED} end sequence CORRID 1001 in batcher tokenizer_0_0, slot 2", ("end", "1001", "0_0", 2)),
        ("Reaper: force-ending CORRID 1001 in batcher tokenizer_0_0, slot 2", ("end", "1001", "0_0", 2)),
        ("model generator_onnx, instance generator_onnx_0_0, executing 3 requests", None),
        ("Enqueuing CORRID 1 into batcher other_0_0, sequence slot 0: other", None),
        ("end sequence CORRID 1 in batcher other_0_0, slot 0", None),
        ("Freeing slot in batcher tokenizer_0_0, slot 0", None),
        ("issue to dynamic batcher CORRID 4 in batcher tokenizer_0_0, slot 0", None),
    ],
)
def test_a_line_about_a_sequence_tells_who_and_where_and_others_are_passed_over(
    text: str, expected: tuple[Any, ...] | None
) -> None:
    found = [(event.kind, event.id, event.instance, event.slot) for event in events((1.0, text))]
    assert found == ([expected] if expected else [])


def test_times_are_as_far_apart_as_the_log_says() -> None:
    one, other = events(
        (1.25, "Enqueuing CORRID 1 into new backlog: tokenizer"),
        (3.5, "Enqueuing CORRID 2 into new backlog: tokenizer"),
    )
    assert other.at - one.at == pytest.approx(2.25)


def test_times_do_not_jump_where_the_readers_clocks_are_put_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
        time.tzset()
        lines = [f"I0326 0{hour}:59:59.000000 1 Enqueuing CORRID 1 into new backlog: m" for hour in (1, 2, 3)]
        found = [slots.parse_slot_event(text, "m") for text in lines]
    time.tzset()
    times = [event.at for event in found if event]
    assert [after - before for before, after in itertools.pairwise(times)] == [3600, 3600]


@pytest.mark.parametrize("content", [None, 'I1121 12:00:00.000000 1 main.cc:1] "nothing of interest"\n'])
def test_a_log_that_is_missing_or_not_verbose_is_refused_with_the_remedy(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "triton.log"
    if content is not None:
        path.write_text(content)
    with lab_error("log-unreadable" if content is None else "slot-lines-none"):
        slots.read_slot_log(path, "tokenizer")


def entering(id: int, slot: int) -> str:
    return f"Enqueuing CORRID {id} into batcher tokenizer_0_0, sequence slot {slot}: tokenizer"


def executing(size: int) -> str:
    return f"model tokenizer, instance tokenizer_0_0, executing {size} requests"


# Two slots, three sequences: 3 waits until 1 has ended.
STORY = events(
    (1.0, entering(1, 0)),
    (1.1, entering(2, 1)),
    (1.2, executing(2)),
    (1.3, "Enqueuing CORRID 3 into new backlog: tokenizer"),
    (2.0, entering(1, 0)),
    (2.0, "End sequence CORRID 1 in batcher tokenizer_0_0, slot 0"),
    (2.1, executing(1)),
    (2.5, entering(3, 0)),
    (2.5, "End sequence CORRID 3 in batcher tokenizer_0_0, slot 0"),
    (2.6, entering(2, 1)),
    (2.6, "End sequence CORRID 2 in batcher tokenizer_0_0, slot 1"),
    (2.7, executing(2)),
)


def step(at: float, rows: dict[int, str], empty: int = 0) -> Step:
    return Step([*rows.values()], at, at + 0.01, instance="0_0", rows=list(rows), more={"empty": empty})


WITNESS = [step(1.2, {0: "1", 1: "2"}), step(2.1, {0: "1"}), step(2.7, {0: "3", 1: "2"})]


def test_stays_and_waits_follow_from_the_events() -> None:
    found = slots.timeline(STORY)
    stays = [(stay.id, stay.slot, len(stay.requests)) for stay in found.stays]
    assert stays == [("1", 0, 2), ("2", 1, 2), ("3", 0, 1)]
    (wait,) = found.waits
    assert wait.id == "3"
    assert wait.ended - wait.began == pytest.approx(1.2)
    assert [(one.instance, one.size) for one in found.executions] == [("0_0", 2), ("0_0", 1), ("0_0", 2)]
    assert found.stays[0].ended - found.began == pytest.approx(1.0)


def test_only_the_sequences_asked_for_are_told_of() -> None:
    assert {stay.id for stay in slots.timeline(STORY, [3]).stays} == {"3"}


def test_an_id_that_is_used_again_is_another_stay() -> None:
    again = events((3.0, entering(1, 1)))
    assert [stay.slot for stay in slots.timeline([*STORY, *again]).stays if stay.id == "1"] == [0, 1]


@pytest.mark.parametrize("direct", [True, False])
def test_two_witnesses_of_the_same_run_agree(direct: bool) -> None:
    assert slots.disagreements(slots.timeline(STORY), WITNESS, direct) == []


@pytest.mark.parametrize(
    ("witness", "said"),
    [
        ([*WITNESS[:2], step(2.7, {0: "3"}, empty=1)], "sequence 2: 2 requests in Triton's log, the model had 1"),
        ([*WITNESS[:2], step(2.7, {1: "3", 0: "2"})], "sequence 3: in 0_0 slot 0 by Triton's log, in 0_0 slot 1"),
        ([*WITNESS[:2], step(2.7, {0: "3", 1: "2"}, empty=2)], "batches of [2, 1, 2], the model had [2, 1, 4]"),
        ([], "sequence 1: 2 requests in Triton's log, the model had 0"),
    ],
)
def test_every_disagreement_is_told(witness: list[Step], said: str) -> None:
    assert any(said in problem for problem in slots.disagreements(slots.timeline(STORY), witness, direct=True))


def test_under_oldest_only_the_instance_must_be_the_same() -> None:
    elsewhere = [*WITNESS[:2], step(2.7, {1: "3", 0: "2"})]
    assert slots.disagreements(slots.timeline(STORY), elsewhere, direct=False) == []


def test_executions_are_told_who_sat_in_which_row() -> None:
    witness = [WITNESS[0], step(2.1, {1: "1"}, empty=1), WITNESS[2]]
    found = slots.with_rows(slots.timeline(STORY), witness)
    assert [list(execution.rows) for execution in found.executions] == [["1", "2"], ["", "1"], ["3", "2"]]


def test_a_timeline_survives_json_and_becomes_a_picture(tmp_path: Path) -> None:
    found = slots.with_rows(slots.timeline(STORY), WITNESS)
    again = Timeline.from_json(found.to_json())
    assert again.executions[0] == Execution(**vars(found.executions[0]))
    assert [vars(stay) for stay in again.stays] == [vars(stay) for stay in found.stays]
    slot_picture.draw_slots(again, tmp_path / "slots.png", "which sequence had which slot")
    assert (tmp_path / "slots.png").read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in tmp_path.iterdir()] == ["slots.png"]
