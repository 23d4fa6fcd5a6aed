"""What models show on /metrics: how it is gathered, named and handed on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import fake_backend
import pytest
from checkout import ROOT
from fake_backend import METRICS as SHOWN
from fake_backend import START, Request

from labserve.observe import gauges
from labserve.observe.gauges import METRICS, Gauges, Life, thin_out

GPT2 = str(ROOT / "labs" / "shared" / "models" / "tiny-gpt2")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    now = [100.0]
    monkeypatch.setattr(gauges, "time", SimpleNamespace(monotonic=lambda: now[0]))
    yield now


def test_the_first_token_is_timed_from_the_arrival_and_each_other_from_the_one_before(clock: list[float]) -> None:
    shown = Gauges("m")
    shown.arrived("a", Life(clock[0]))
    clock[0] += 3
    shown.step(["a"], "p", [7], [0])  # a part of its prompt
    clock[0] += 1
    shown.step(["a"], "p", [2], [1])
    clock[0] += 0.5
    shown.step(["a"], "d", [1], [2])  # two at once
    shown.gone("a")
    shown.close()
    assert SHOWN["labs_time_to_first_token_seconds m"].observed == [4.0]
    assert SHOWN["labs_inter_token_latency_seconds m"].observed == [0.5]
    assert SHOWN["labs_tokens_total m"].total == 3
    assert SHOWN["labs_step_tokens m prefill"].observed == [7, 2]
    assert SHOWN["labs_step_tokens m decode"].observed == [1]


def test_a_name_that_is_used_again_starts_anew(clock: list[float]) -> None:
    shown = Gauges("again")
    for _ in range(2):
        shown.arrived("7", Life(clock[0]))
        clock[0] += 2
        shown.step(["7"], "p", [1], [1])
        shown.gone("7")
    shown.close()
    assert SHOWN["labs_time_to_first_token_seconds again"].observed == [2.0, 2.0]
    assert "labs_inter_token_latency_seconds again" not in SHOWN


def test_a_step_waits_for_no_message_to_the_server() -> None:
    shown = Gauges("m", running=0)
    shown.update(running=1)
    assert SHOWN["labs_running m"].total == 0
    shown.flush()
    assert SHOWN["labs_running m"].total == 1


def test_a_message_that_fails_is_made_up_for_and_the_metrics_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = Gauges("shaky", running=0, steps_total=0)
    counter, failures = SHOWN["labs_steps_total shaky"], [RuntimeError("no answer")]
    increment = counter.increment

    def once(value: float) -> None:
        if failures:
            raise failures.pop()
        increment(value)

    monkeypatch.setattr(counter, "increment", once)
    shown.update(steps_total=3, running=2)
    with pytest.raises(RuntimeError):
        shown.flush()
    shown.update(steps_total=1)
    shown.flush()
    assert (counter.total, SHOWN["labs_running shaky"].total) == (4, 2)


def test_what_has_not_changed_is_no_message_to_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = Gauges("still", running=2, steps_total=0)
    told: list[tuple[str, float]] = []
    monkeypatch.setattr(SHOWN["labs_running still"], "set", lambda value: told.append(("running", value)))
    monkeypatch.setattr(SHOWN["labs_steps_total still"], "increment", lambda value: told.append(("steps", value)))
    for running, steps in ((2, 0), (3, 0), (3, 1), (2, 0)):
        shown.update(running=running, steps_total=steps)
        shown.flush()
    shown.close()
    assert told == [("running", 3), ("steps", 1), ("running", 2)]


def test_of_too_many_observations_some_are_taken_from_all_over() -> None:
    assert thin_out([1.0, 2.0]) == [1.0, 2.0]
    assert thin_out([float(n) for n in range(1000)], 10) == [n * 100.0 for n in range(10)]


@pytest.mark.parametrize("path", ["iterative/simple-gpt2", "iterative/iterative-gpt2"])
def test_a_model_shows_who_runs_and_what_its_steps_were(path: str, tmp_path: Path) -> None:
    name = path.rpartition("/")[2]
    filled = {"kv_cache": "true", "precision": "fp32", "max_batch_size": 4, "max_sequence_idle_microseconds": 10**8}
    model = fake_backend.load(path, model_path=GPT2, run_dir=tmp_path, **filled)
    batch = [
        Request({"text_input": [[b"The"]]}, '{"max_tokens": 3, "ignore_eos": true}', correlation=n, flags=START)
        for n in (1, 2)
    ]
    while left := [request for request in batch if not request.final]:
        model.execute(left)
        for request in left:
            request._flags = 0
    model.finalize()
    assert SHOWN[f"labs_running {name}"].total == 0
    assert SHOWN[f"labs_steps_total {name}"].total == 3
    assert SHOWN[f"labs_tokens_total {name}"].total == 6
    assert SHOWN[f"labs_batch_size {name}"].observed == [2, 2, 2]
    assert len(SHOWN[f"labs_time_to_first_token_seconds {name}"].observed) == 2
    assert len(SHOWN[f"labs_inter_token_latency_seconds {name}"].observed) == 4


def test_every_metric_of_a_model_is_explained_in_the_docs() -> None:
    told = (ROOT / "docs" / "operate" / "metrics.md").read_text(encoding="utf-8")
    assert [name for name in METRICS if f"`labs_{name}`" not in told] == []


@pytest.mark.parametrize(
    ("first", "later", "share"),
    [
        ({"kv_blocks": 40, "kv_blocks_used": 0, "slots": 8, "running": 0}, {"kv_blocks_used": 10, "running": 8}, 0.25),
        ({"slots": 8, "running": 0}, {"running": 6}, 0.75),
    ],
)
def test_the_share_of_the_cache_is_of_blocks_or_else_of_slots(
    first: dict[str, float], later: dict[str, float], share: float
) -> None:
    gauges = Gauges("shared", **first)
    gauges.update(**later)
    gauges.close()
    assert SHOWN["labs_kv_usage shared"].total == share
