"""The clock of a real stack: Triton waits because the model does, a step is a step, and a pause loses nothing."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from machinery import labctl, started
from waiting import DEADLINE_S, eventually

from labctl.clock import Clock
from labkit.client.ask import TextStream
from labkit.evidence import steplog
from labkit.evidence.records import RequestRecord

pytestmark = pytest.mark.xdist_group("iterative")
MODELS = ("simple-gpt2", "iterative-gpt2")
SEATS = 2
SETTINGS = {"max_batch_size": SEATS, "threads": 1}
PATIENCE_S = 1.0  # so long the model keeps a slot for a sequence that is silent
ASKED = (("The fox", 9), ("My favourite food is", 4), ("Anna", 5), ("In winter the", 3))


@pytest.fixture(scope="module")
def server(lab_server: Any) -> Any:
    return lab_server("iterative", **SETTINGS)


@pytest.fixture
def clock(server: Any) -> Iterator[Clock]:
    clock = Clock(server.run_dir, MODELS)
    yield clock
    clock.run()


def send(stream: TextStream, model: str, prompt: str, tokens: int) -> RequestRecord:
    return stream.send(model, prompt, max_tokens=tokens, ignore_eos=True)


def held(clock: Clock, model: str, least: int = 1) -> Mapping[str, Any]:
    """The step that waits, as soon as one with so many requests does."""
    (state, *_) = eventually(
        lambda: [one for one in clock.states(model) if one["state"] == "held" and len(one["ids"]) >= least]
    )
    return state


def test_a_pause_beyond_the_patience_of_the_model_changes_no_text(server: Any, clock: Clock) -> None:
    with TextStream(server.grpc) as stream:
        free = [send(stream, model, *each) for model in MODELS for each in ASKED]
        stream.wait(*free, timeout=DEADLINE_S)
    with TextStream(server.grpc) as stream:
        clock.pause()
        paused = [send(stream, model, *each) for model in MODELS for each in ASKED]
        for model in MODELS:
            held(clock, model)
        clock.step(2, endpoint=server.metrics)
        time.sleep(4 * PATIENCE_S)  # the point of the test: nobody hears of them for so long
        assert clock.step(endpoint=server.metrics) == dict.fromkeys(MODELS, 1)
        clock.run()
        stream.wait(*paused, timeout=DEADLINE_S)
    assert [record.error for record in paused] == [""] * len(paused)
    assert [record.text for record in paused] == [record.text for record in free]


def test_the_batch_of_every_step_is_the_one_that_was_seen_to_wait(server: Any, clock: Clock) -> None:
    """Who gets a token is told by the clients, by the log, and before by the paused model: all three agree."""
    model, began = "iterative-gpt2", time.monotonic()
    clock.pause()
    sizes: list[tuple[int, int]] = []
    with TextStream(server.grpc) as stream:
        records = [send(stream, model, *ASKED[0])]
        held(clock, model)
        for number in range(60):
            if 1 <= number < len(ASKED):
                records.append(send(stream, model, *ASKED[number]))
            if all(record.end for record in records):
                break
            waits = held(clock, model)["ids"]
            before = [len(record.responses) for record in records]
            assert clock.step(1, model, server.metrics) == {model: 1}
            (line,) = [
                step for step in steplog.read_step_log(server.run_dir, model, began) if step.more["n"] > _last(sizes)
            ]
            assert list(line.ids) == waits
            print(
                f"step {len(sizes) + 1:2}  predicted {', '.join(waits):12}  got a token {', '.join(line.ids):12}",
                end="",
            )
            print(f"  ended {', '.join(line.ended) or '-'}")
            sizes.append((line.more["n"], line.batch))
            eventually(lambda: sum(len(r.responses) for r in records) == sum(before) + len(waits))  # noqa: B023
        stream.wait(*records, timeout=DEADLINE_S)
    assert sum(size for _, size in sizes) == sum(tokens for _, tokens in ASKED)
    assert max(size for _, size in sizes) == SEATS
    assert all(record.end and not record.error for record in records)


def _last(sizes: list[tuple[int, int]]) -> int:
    return sizes[-1][0] if sizes else 0


def test_a_step_of_nobody_returns_soon_and_grants_nothing_for_later(server: Any, clock: Clock) -> None:
    clock.pause()
    assert clock.step(5, endpoint=server.metrics) == {}, "and does not wait for somebody to come"
    with TextStream(server.grpc) as stream:
        record = send(stream, "iterative-gpt2", "The", 2)
        held(clock, "iterative-gpt2")
        time.sleep(0.1)
        assert not record.responses
        assert clock.step(5, endpoint=server.metrics) == {"iterative-gpt2": 2}, "it ended before the grant did"
        stream.wait(record, timeout=DEADLINE_S)


def test_the_command_line_pauses_steps_and_says_so(server: Any, clock: Clock, checkout: Path) -> None:
    said = labctl("clock", "iterative", "pause", root=checkout).stdout
    assert re.search(r"It goes on by itself in 6\d\d s: Triton forgets a sequence that is idle for 900 s", said)
    assert json.loads(labctl("status", "iterative", "--json", root=checkout).stdout)["state"] == "paused"
    with TextStream(server.grpc) as stream:
        record = send(stream, "iterative-gpt2", "The", 3)
        held(clock, "iterative-gpt2")
        same = [word for key, value in SETTINGS.items() for word in ("--set", f"{key}={value}")]
        refused = labctl("bench", "iterative", *same, root=checkout, check=False)
        assert refused.returncode == 1
        assert "iterative is up, but its clock stands still" in refused.stderr
        told = labctl("clock", "iterative", "step", "2", "--model", "iterative-gpt2", root=checkout).stdout
        assert "iterative-gpt2: 2 steps" in told
        # On a busy machine the third was not yet held when that was printed.
        eventually(lambda: "the next step is of" in labctl("clock", "iterative", "pause", root=checkout).stdout)
        (name,) = held(clock, "iterative-gpt2")["ids"]
        shown = labctl("explain", "iterative", name, root=checkout).stdout
        letter = shown.split()[0]
        assert f"the next step is of {letter}\n" in labctl("clock", "iterative", "pause", root=checkout).stdout
        assert f"(id {name}) in iterative-gpt2: did not wait" in shown
        assert re.search(r"next step +the clock holds it$", shown, re.MULTILINE)
        labctl("clock", "iterative", "slow", "2", root=checkout)
        stream.wait(record, timeout=DEADLINE_S)
    labctl("clock", "iterative", "run", root=checkout)
    assert json.loads(labctl("status", "iterative", "--json", root=checkout).stdout)["state"] == "ready"


def test_infer_says_that_the_clock_stands_still_and_how_it_goes_on(server: Any, clock: Clock, checkout: Path) -> None:
    clock.pause()
    words = ("infer", "iterative", "-m", "iterative-gpt2", "-p", "The", "-o", "2")
    with started(checkout, *words) as process:
        assert process.stdout and process.stderr
        told = process.stderr.readline()
        assert "stands still, so no answer comes: labctl clock iterative run" in told
        clock.run()
        assert process.stdout.readline().strip()
        assert process.wait(DEADLINE_S) == 0


def test_fault_29_down_does_not_wait_for_a_clock_that_stands_still(server: Any, clock: Clock, checkout: Path) -> None:
    clock.pause()
    with TextStream(server.grpc) as stream:
        record = send(stream, "iterative-gpt2", "The", 5)
        held(clock, "iterative-gpt2")
        labctl("down", "iterative", root=checkout)
        eventually(lambda: record.end)
        assert not record.error, "what was executed has ended in good order"
