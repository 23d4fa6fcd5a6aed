"""The picture of a few requests shows each of them whole."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from labkit.evidence import timeline
from labkit.evidence.records import Lane, RequestRecord
from labsched.step import Step

WAITS = some.lists(some.floats(0.001, 5), min_size=1, max_size=4)


def lane(waits: list[float]) -> Lane:
    """Requests that come together; each waits so long for its first token, and the steps begin when the first has."""
    records = []
    for number, wait in enumerate(waits):
        record = RequestRecord(f"m-{number}", "m", "a prompt", start=10.0, end=11.0 + wait)
        record.responses = [(10.0 + wait, "a"), (11.0 + wait, "b")]
        records.append(record)
    first = 10.0 + min(waits)
    return Lane("waits", records, [Step(["0"], first, first + 1)])


@settings(max_examples=5)  # Matplotlib takes its time
@given(WAITS)
def test_every_arrow_of_waiting_is_within_the_axes(waits: list[float]) -> None:
    drawn: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timeline, "save_figure", lambda figure, *_, **__: drawn.append(figure))
        timeline.draw_timeline([lane(waits)], Path("nowhere.png"), "title")
    (figure,) = drawn
    left, right = figure.axes[0].get_xlim()
    ends = [x for note in figure.axes[0].texts if hasattr(note, "xyann") for x in (note.xy[0], note.xyann[0])]
    assert len(ends) == 2 * len(waits)
    assert left <= min(ends) and max(ends) <= right


def test_a_prefill_is_drawn_although_the_token_came_before_its_step_was_over() -> None:
    record = RequestRecord("m-1", "m", "a prompt", start=10.0, end=10.4)
    record.responses = [(10.19, "a"), (10.4, "b")]
    steps = [Step(["1"], 10.1, 10.2, prefill=1), Step(["1"], 10.3, 10.41)]
    assert timeline._prefill(Lane("one", [record], steps), record) == (10.1, 10.19)
