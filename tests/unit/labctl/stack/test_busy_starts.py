"""A start that fails as on a busy machine is made once more: of a stack, of a replica, of an edited model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from lab_errors import lab_error

from labctl import repository
from labctl.options import Options
from labctl.replicas import restart
from labctl.runtimes.local import LocalRuntime
from labctl.stack import edits
from labctl.stack import up as bringing_up
from labctl.stack.ports import free_endpoints
from labctl.stack.session import Session
from labctl.stack.stack import PlannedStack, RunningStack, record_of
from labctl.triton.server_api import Unreachable
from labkit.errors import LabError

ABORTED = LabError("the server ended before it was ready", code="server-aborted")
UNHEALTHY = LabError("m cannot be loaded", "Stub process 'm_0_0' is not healthy.", code="model-load-failed")


def failing_first(error: Exception, result: object = None) -> tuple[list[int], Callable[..., Any]]:
    """A function that raises the first time, and the list of its calls."""
    calls: list[int] = []

    def act(*_: Any) -> object:
        calls.append(1)
        if len(calls) == 1:
            raise error
        return result

    return calls, act


@pytest.fixture
def there(session: Session) -> RunningStack:
    lab, stack = session.catalog.stack("iterative")
    runtime = LocalRuntime(session.workspace)
    record = record_of(PlannedStack(session, lab, stack, runtime, Options()), free_endpoints(1)[0])
    running = RunningStack.of(session, lab, runtime, record)
    repository.render_repository(running.plan.request)
    return running


def test_a_stack(session: Session, there: RunningStack, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, start = failing_first(ABORTED, there.record)
    monkeypatch.setattr(bringing_up, "_start", start)
    monkeypatch.setattr(bringing_up, "prepare_artifacts", lambda *_: None)
    lab, stack = session.catalog.stack("iterative")
    bringing_up.up(session, lab, stack, Options(runtime="local", ports="auto"))
    assert len(calls) == 2


def test_replicas(there: RunningStack, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, start = failing_first(ABORTED, there.record)
    monkeypatch.setattr(restart, "_start_replicas", start)
    assert restart.start_replicas(there, []) is there.record
    assert len(calls) == 2


def test_an_edited_model(there: RunningStack, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, load = failing_first(UNHEALTHY)
    monkeypatch.setattr("labctl.triton.server_api.load_model", load)
    monkeypatch.setattr("labctl.triton.readiness.probe", lambda *_: None)
    edits.load_differing(there, ["simple-gpt2"])
    assert len(calls) == 2


def test_a_server_that_aborts_under_a_reload_is_not_for_the_model_to_explain(
    there: RunningStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = LabError("simple-gpt2 was not loaded within 60 s", "its initialize may never end", code="model-load-slow")
    silent.__cause__ = Unreachable("connection refused")
    _, load = failing_first(silent)
    monkeypatch.setattr("labctl.triton.server_api.load_model", load)
    monkeypatch.setattr(LocalRuntime, "logs", lambda *_, **__: iter(["what():  boost::interprocess::lock_exception"]))
    with lab_error("server-aborted"):
        edits.load_differing(there, ["simple-gpt2"])
