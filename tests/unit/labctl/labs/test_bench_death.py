"""``labctl bench`` of a server that died or stalled in the middle: that is the message, not the request that met it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from lab_errors import lab_error

from labctl.cli import bench as command
from labctl.lab import Lab
from labctl.labs import bench
from labctl.labs.servers import as_it_runs
from labctl.labs.workloads import Workload, measure_model, tabulate
from labctl.options import Options
from labctl.runtimes.base import State
from labctl.runtimes.local import LocalRuntime
from labctl.runtimes.record import Endpoints, Record
from labctl.stack import up
from labctl.stack.ports import free_endpoints
from labctl.stack.session import Session
from labctl.stack.stack import PlannedStack, RunningStack, record_of
from labkit.client.text_model import TextModel
from labkit.errors import LabError
from labkit.evidence import results, stats
from labkit.evidence.records import RequestRecord
from labsched.replay.slo import Slo


@pytest.fixture
def iterative(session: Session, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """A lab whose stack comes up for a benchmark without a server."""
    lab = session.catalog.lab("iterative")
    record = Record("iterative", "02", "local", "cpu", {}, ["iterative-gpt2"], Endpoints("h:1", "h:2", "h:3"))

    @contextmanager
    def brought_up(*_: Any) -> Iterator[Any]:
        yield RunningStack.of(session, lab, LocalRuntime(session.workspace), record)

    monkeypatch.setattr(bench, "ephemeral_stack", brought_up)
    return lab


@pytest.mark.parametrize(("dead", "code"), [(True, "server-died"), (False, "token-late")])
def test_fault_19_a_request_that_failed_is_told_as_the_death_of_the_server_where_there_was_one(
    iterative: Lab, session: Session, monkeypatch: pytest.MonkeyPatch, dead: bool, code: str
) -> None:

    def failed(*_: Any) -> Any:
        raise LabError("echo had no first response", code="token-late")

    monkeypatch.setattr("labctl.stack.faults.stack_explainer", lambda *_: str)
    monkeypatch.setattr("labctl.labs.workloads.measure_model", failed)
    monkeypatch.setattr(
        bench,
        "death_of_stack",
        lambda *_: LabError("quick died: killed by SIGFPE", code="server-died") if dead else None,
    )
    with lab_error(code):
        bench.bench_stack(session, iterative, "iterative", Options(), "iterative-gpt2", Workload(), [1])


def test_an_execution_that_does_not_come_back_ends_the_measurement_with_its_line(
    iterative: Lab, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = {"model": "iterative-gpt2", "steps": 3, "since": time.time() - 21, "file": "model.py", "line": 31}
    told = []

    def measured(endpoints: Any, model: str, workload: Workload, number: int, progress: Any, folder: str) -> Any:
        progress("0 of 1 answered")
        told.append("went on")
        run_dir = session.workspace.folder("iterative").run_dir()
        run_dir.mkdir(parents=True)
        (run_dir / "stuck-iterative-gpt2.json").write_text(json.dumps(mark))
        progress("0 of 1 answered")
        told.append("went on for ever")

    monkeypatch.setattr("labctl.labs.workloads.measure_model", measured)
    with lab_error("models-stuck", "model.py:31"):
        bench.bench_stack(session, iterative, "iterative", Options(), "iterative-gpt2", Workload(), [1])
    assert told == ["went on"]


def test_a_bench_leaves_its_limits_and_goodput_in_result_and_report(
    iterative: Lab, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:

    def send(*_: Any) -> Any:
        records = [RequestRecord("1", "m", "p", start=0.0, responses=[(0.1, "a"), (0.2, "b"), (0.5, "c")], end=0.5)]
        return stats.metrics(records, Slo(ttft=100, tpot=200)), records

    monkeypatch.setattr("labctl.labs.workloads.measure_model", send)
    monkeypatch.setattr("labctl.triton.server_api.server_version", lambda _: "2.68.0")
    monkeypatch.setattr("labctl.stack.edits.not_shipped", lambda *_: [])
    monkeypatch.setattr(TextModel, "of", lambda *_: SimpleNamespace(scheduling=None))
    workload = Workload(slo=Slo(ttft=100, tpot=200))
    out = bench.bench_stack(session, iterative, "iterative", Options(), "iterative-gpt2", workload, [1]).folder
    found = results.load_result(out)
    assert found["settings"]["slo"] == "ttft<100ms,tpot<200ms"
    assert found["metrics"]["1 in flight"]["goodput"] == pytest.approx(2.0)
    report = " ".join((out / "report.md").read_text().split())  # its tables are aligned
    assert "| load | tokens/s | requests/s | goodput/s | TTFT p50 ms" in report
    assert "| 1 in flight | 6 | 2.00 | 2.00 | 100 | 100 | 200.0 | 298.0 | 500 | - |" in report
    assert "within ttft<100ms,tpot<200ms" in report


@pytest.mark.parametrize(("decoupled", "tells_end"), [(False, False), (True, True)])
def test_goodput_of_a_model_whose_responses_are_not_tokens_is_refused_before_anything_is_sent(
    monkeypatch: pytest.MonkeyPatch, decoupled: bool, tells_end: bool
) -> None:
    model = SimpleNamespace(decoupled=decoupled, tells_end=tells_end, tokenizer_dir=None)
    monkeypatch.setattr(TextModel, "of", lambda *_: model)
    with lab_error("goodput-needs-tokens"):
        measure_model({"grpc": "nowhere"}, "m", Workload(slo=Slo(ttft=1)), 1, lambda _: None)


def test_without_set_what_runs_is_measured_and_with_it_another_stack_is_refused(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab, stack = session.catalog.stack("iterative")
    runtime = LocalRuntime(session.workspace)
    given = Options(set={"max_batch_size": "2"})
    runs = record_of(PlannedStack(session, lab, stack, runtime, given), free_endpoints(1)[0])
    there = RunningStack.of(session, lab, runtime, runs, already=True)
    session.workspace.folder(stack).path.mkdir(parents=True)
    session.remember(runs)
    monkeypatch.setattr(LocalRuntime, "state", lambda self, record: State(record, frozenset([1])))
    monkeypatch.setattr("labctl.stack.replicas.await_ready", lambda *_: None)
    asked = as_it_runs(session, stack, Options())
    assert asked.set["max_batch_size"] == 2
    assert up._already(there, asked).already
    other = Options(set={"max_batch_size": "8"})
    assert as_it_runs(session, stack, other) == other
    with lab_error("stack-up-otherwise"):
        up._already(there, other)


def test_a_stack_that_is_down_is_measured_as_asked(session: Session) -> None:
    assert as_it_runs(session, "iterative", Options(ports="auto")) == Options(ports="auto")


def measured(tokens: float, scheduler: float | None, tritons: float) -> dict[str, Any]:
    numbers: dict[str, Any] = {"output_token_throughput": tokens, "request_throughput": 1.0}
    numbers |= {"scheduler": {"mean_batch": scheduler}} if scheduler else {}
    return numbers | {"triton": {"mean_batch": tritons}}


def test_the_mean_batch_is_the_schedulers_own_and_tritons_is_told_apart() -> None:
    outcome = bench.BenchResult(Path(), {"4 in flight": measured(10.0, 2.0, 3.9)}, "iterative")
    assert tabulate(outcome.metrics)[1][0][-1] == "2.0"
    said = " ".join(command._table_notes("iterative-gpt2", outcome, False, [4]))
    assert "as the model's own scheduler counts them" in said
    assert "Triton counts up to 3.9" in said
    assert tabulate({"x": measured(1.0, None, 1.5)})[1][0][-1] == "1.5"


def test_a_load_that_suits_a_model_of_whole_batches_is_told_as_such() -> None:
    outcome = bench.BenchResult(Path(), {"4 in flight": measured(10.0, 2.0, 2.0)}, "dynamic")
    assert "this load suits m: all answers have one length" in " ".join(
        command._table_notes("m", outcome, False, [1, 4])
    )
    assert "suits" not in " ".join(command._table_notes("m", outcome, True, [1]))  # arrivals at random
    assert "suits" not in " ".join(command._table_notes("m", outcome, False, [1]))  # one at a time
