"""iterative-gpt2 as it is, under any stream of requests: a slot for each live sequence, and none is lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fake_backend
import labserve_tiny
import numpy as np
import pytest
from fake_backend import END, RESCHEDULE, START, Request
from hypothesis import given, settings
from hypothesis import strategies as st

from labctl.clock import Clock

pytestmark = pytest.mark.usefixtures("by_hand")
SLOTS = 3
IDLE = 60.0
ASKED = '{"max_tokens": 4, "ignore_eos": true}'


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(labserve_tiny.make(tmp_path_factory.mktemp("tiny")))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    yield now


def make(folder: str, run_dir: str = "nowhere", gather_microseconds: int = 0) -> Any:
    return fake_backend.load(
        "iterative/iterative-gpt2",
        model_path=folder,
        max_batch_size=SLOTS,
        kv_cache="true",
        precision="fp32",
        run_dir=run_dir,
        gather_microseconds=gather_microseconds,
        max_sequence_idle_microseconds=int(IDLE * 1e6),
    )


@pytest.fixture
def model(folder: str) -> Any:
    return make(folder)


def request(id: int, text: bytes = b"the fox", parameters: str = ASKED, flags: int = START) -> Request:
    return Request({"text_input": np.array([[text]], dtype=object)}, parameters, correlation=id, flags=flags)


def again(rescheduled: Request) -> Request:
    """What Triton schedules next: the same request, no longer at its start."""
    rescheduled._flags, rescheduled.flags_out = 0, 0
    return rescheduled


def run(model: Any, asked: Request, clock: list[float] | None = None) -> None:
    """Schedule a request until it has an answer: it may first be asked to wait for those that are out of step."""
    for _ in range(3):
        model.execute([asked])
        if asked.responses:
            return
        again(asked)
        if clock:
            clock[0] += 0.01


def slow_down(model: Any, clock: list[float], seconds: float) -> None:
    """Let each of its steps take so long."""
    compute = model.running.decoder._model.logits

    def slowly(*told: Any) -> Any:
        clock[0] += seconds
        return compute(*told)

    model.running.decoder._model.logits = slowly


def slots_used(model: Any) -> int:
    return int(model.running.decoder.cache.used)


@pytest.mark.parametrize("step_s", [0.0, 1.2])
def test_an_id_that_is_started_twice_ends_both_with_an_error_and_is_free_a_second_later(
    model: Any, clock: list[float], step_s: float
) -> None:
    """Also where steps take longer than a second."""
    slow_down(model, clock, step_s)
    first, second = request(7), request(7)
    model.execute([first])
    assert first.flags_out == RESCHEDULE
    model.execute([second])
    assert "sequence_id: 7 was started while" in second.error
    assert second.flags_out != RESCHEDULE
    model.execute([again(first)])  # Triton executes it once more, and could not schedule it again
    assert "sequence_id: 7 was in use just now" in first.error
    assert first.final
    assert slots_used(model) == 0
    clock[0] += 2.0
    third = request(7)
    run(model, third)
    assert not third.error


def test_of_many_starts_of_one_id_none_is_rescheduled_after_one_has_ended(model: Any, clock: list[float]) -> None:
    """Triton could not schedule it again, and its client would hear nothing."""
    first, *others = (request(8) for _ in range(4))
    model.execute([first])
    for other in (*others, again(first)):
        clock[0] += 0.01
        model.execute([other])
        assert other.final and other.flags_out != RESCHEDULE
    whole = request(5, parameters='{"max_tokens": 1}')
    run(model, whole, clock)
    assert not whole.error and whole.final
    for refused in (request(6, flags=START | END), request(6), request(6), request(5), request(5)):
        clock[0] += 0.01
        model.execute([refused])
        assert refused.final and refused.flags_out != RESCHEDULE
    assert slots_used(model) == 0


def test_an_id_whose_client_has_gone_may_be_used_again(model: Any, clock: list[float]) -> None:
    model.execute([request(5)])
    clock[0] += 2.0  # it is not heard of any more
    second = request(5)
    model.execute([second])
    assert not second.error
    assert slots_used(model) == 1


def test_the_slot_of_a_client_that_has_gone_is_free_long_before_the_idle_limit(model: Any, clock: list[float]) -> None:
    gone, patient, other = request(5), request(6), request(7)
    model.execute([gone, patient])
    gone.cancelled = True  # Triton does not schedule it again
    clock[0] += 2.0
    run(model, other, clock)
    assert {s.correlation for s in model.running.scheduler.running} == {6, 7}, "who only waits long keeps its slot"
    assert slots_used(model) == 2
    assert "5" not in model.running.scheduler.slots.names


def test_a_request_that_ends_its_sequence_itself_is_refused_at_once(model: Any) -> None:
    whole = request(4, flags=START | END)
    model.execute([whole])
    assert "sequence_end: " in whole.error
    assert slots_used(model) == 0


def test_those_who_come_together_share_their_first_step_and_nobody_waits_twice(folder: str) -> None:
    model = make(folder, gather_microseconds=1000)
    first, second, late = request(1), request(2), request(3)
    model.execute([first])
    assert not first.responses and first.flags_out == RESCHEDULE, "the model was idle: others may be on their way"
    model.execute([again(first), second])
    assert len(first.responses) == len(second.responses) == 1
    model.execute([again(first), again(second), late])
    assert len(first.responses) == 2 and len(late.responses) == 1, "it is idle no more"


def test_scores_that_are_no_numbers_fail_their_sequence_alone(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    good, bad = request(1), request(2, text=b"a small stone")
    logits = model.running.decoder.logits

    def poisoned(batch: Any) -> Any:
        scores = logits(batch)
        scores[[len(s.ids) for s in batch].index(len(model.running.live[2].ids))] = float("nan")
        return scores

    monkeypatch.setattr(model.running.decoder, "logits", poisoned)
    model.execute([good, bad])
    assert bad.error.startswith("internal error in iterative-gpt2 (see the server's log, entry 1)")
    assert good.flags_out == RESCHEDULE
    assert not good.error
    assert slots_used(model) == 1


def test_long_steps_make_nobody_silent(model: Any, clock: list[float]) -> None:
    """Steps of more than a second: newcomers wait for a slot (fault 34)."""
    slow_down(model, clock, 1.2)
    live = [request(id, parameters='{"max_tokens": 20, "ignore_eos": true}') for id in range(1, SLOTS + 1)]
    late = [request(id, parameters='{"max_tokens": 20, "ignore_eos": true}') for id in (11, 12)]
    for each in live:
        model.execute([each])
    for _ in range(60):  # Triton forms the newcomers' batch while the others are computed
        for batch in (late, live):
            todo = [again(each) if each.flags_out else each for each in batch if not each.final]
            if todo:
                clock[0] += 0.003
                model.execute(todo)
    assert [len(each.responses) for each in (*live, *late)] == [20] * 5
    assert not model.running.scheduler._evicted


def test_sequences_that_do_not_come_back_are_asked_after_as_soon_as_another_wants_their_slots(
    model: Any, clock: list[float]
) -> None:
    """Fault 39: a client that has left before its first answer costs one step, not a second."""
    gone = [request(id) for id in range(1, 10 * SLOTS + 1)]
    patient = request(99)
    began, queue, executions = clock[0], [*gone, patient], 0
    while not patient.final:
        executions += 1
        clock[0] += 0.003
        batch = [again(each) if each.flags_out else each for each in queue[: 4 * SLOTS]]
        model.execute(batch)
        for each in batch:
            each.cancelled = each.cancelled or (each is not patient and bool(each.responses))  # it cannot be written to
        queue = [*queue[4 * SLOTS :], *(each for each in batch if not each.final and not each.cancelled)]
    assert executions <= 4 * len(gone) / SLOTS
    assert clock[0] - began < 1.0, "nobody waited for a second of silence"
    assert all(len(each.responses) == 1 for each in gone)
    clock[0] += 2.0
    model.running.looking.tick()  # the last one is dropped while nothing is executed
    assert not model.running.live
    assert slots_used(model) == 0


def test_after_a_failed_execution_nothing_is_kept_of_its_requests(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton ends them itself. To ask it after one of them then would end Triton."""
    asked = [request(id) for id in range(1, SLOTS + 3)]
    monkeypatch.setattr(model.running.recorder.clock, "ready", _broken)
    with pytest.raises(RuntimeError):
        model.execute(asked)
    assert not model.running.live
    assert slots_used(model) == 0


def test_while_all_come_back_no_client_is_asked_after(
    model: Any, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Request] = []

    def is_cancelled(each: Request) -> bool:
        asked.append(each)
        return False

    monkeypatch.setattr(Request, "is_cancelled", is_cancelled)
    live = [request(id, parameters='{"max_tokens": 90, "ignore_eos": true}') for id in range(1, SLOTS + 3)]
    for _ in range(80):
        clock[0] += 0.005
        model.execute([again(each) if each.flags_out else each for each in live])
    assert asked == []


def texts_of_three(model: Any, clock: list[float], pause: Callable[[Callable[[], None]], None]) -> list[str]:
    """What three sequences are answered; the third is not there for a while, in which ``pause`` surrounds a step."""
    three = [request(id, text) for id, text in ((1, b"the fox"), (2, b"a small stone"), (3, b"in winter"))]
    texts = ["", "", ""]

    def turn(batch: list[Request]) -> None:
        """Schedule them until they have a token each: they may first be asked to wait for the one who is not there."""
        before = [len(each.responses) for each in batch]
        while [len(each.responses) for each in batch] == before:
            clock[0] += 0.01
            model.execute([again(each) if each.responses else each for each in batch])

    turn(three)
    pause(lambda: turn(three[:2]))
    turn(three)
    for _ in range(9):
        for each in three:
            if not each.final:
                turn([each])
    for place, each in enumerate(three):
        assert not each.error and each.final
        texts[place] = b"".join(response.outputs["text_output"][0] for response in each.responses).decode()
    return texts


def test_a_pause_beyond_the_idle_limit_changes_no_text(folder: str, clock: list[float], tmp_path: Path) -> None:
    """A step stands still for longer than any limit of the model, and a sequence is not even in that step."""

    def stand_still(step: Callable[[], None]) -> None:
        remote = Clock(tmp_path, ("iterative-gpt2",))
        remote.pause()
        thread = threading.Thread(target=step)
        thread.start()
        while not [state for state in remote.states("iterative-gpt2") if state["state"] == "held"]:
            assert thread.is_alive()
        clock[0] += 10 * IDLE
        remote.run()
        thread.join()

    free = texts_of_three(make(folder), clock, lambda step: step())
    paused = make(folder, run_dir=str(tmp_path))
    assert texts_of_three(paused, clock, stand_still) == free
    paused.finalize()


Event = tuple[str, int]
EVENTS = st.lists(
    st.tuples(
        st.sampled_from("start start tick tick duplicate end cancel bad crash idle pause look".split()),
        st.integers(1, 5),
    ),
    max_size=60,
)


@settings(max_examples=60)
@given(events=EVENTS)
def test_slots_used_are_live_sequences_whatever_comes(folder: str, clock: list[float], events: list[Event]) -> None:
    model = make(folder)
    compute = model.running.decoder._model.logits
    queue: list[Request] = []  # what Triton would schedule: newcomers, and those that were given back
    for kind, id in events:
        clock[0] += 0.01
        match kind:
            case "start":
                queue.append(request(id))
            case "duplicate":
                queue += [request(id), request(id), request(id)]
            case "end":
                queue.append(request(id, flags=END))
            case "bad":
                queue.append(request(id, text=b"\xff"))
            case "cancel":  # Triton drops it and tells nobody
                for each in queue:
                    each.cancelled |= each.correlation_id() == id
                queue = [each for each in queue if not each.cancelled]
            case "idle":
                clock[0] += IDLE + 1.0
            case "pause":
                clock[0] += 1.5
            case "look":
                model.running.looking.tick()
            case "crash" | "tick":
                model.running.decoder._model.logits = _broken if kind == "crash" else compute
                batch, queue = queue[: 2 * SLOTS], queue[2 * SLOTS :]
                model.execute(batch)
                for each in batch:
                    assert each.final != (each.flags_out == RESCHEDULE), "answered for good, or scheduled again"
                    if not each.final:
                        queue.append(again(each))
        live = [s for s in model.running.live.values() if s.slot is not None]
        assert slots_used(model) == len(live) <= SLOTS
        running = model.running.scheduler.running
        assert all(s.running and s is model.running.live[s.correlation] for s in running)
    clock[0] += IDLE + 1.0
    model.running.decoder._model.logits = compute
    last = request(6, parameters='{"max_tokens": 1, "ignore_eos": true}')
    run(model, last, clock)
    assert last.final
    assert not last.error
    assert slots_used(model) == 0


def _broken(*_: Any) -> Any:
    raise RuntimeError("at /somewhere/in/torch.py")
