"""``labctl bench`` of a server that died in the middle: the death is the message, not the request that met it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from labctl.errors import LabError
from labctl.listener import Silent
from labctl.measure.workloads.bench import PROMPTS, Workload
from labctl.orchestrator import bench
from labctl.orchestrator.up import UpOptions


@pytest.mark.parametrize(("dead", "said"), [(True, "died: killed by SIGFPE"), (False, "no first response")])
def test_a_request_that_failed_is_told_as_the_death_of_the_server_where_there_was_one(
    monkeypatch: pytest.MonkeyPatch, dead: bool, said: str
) -> None:
    @contextmanager
    def up(*_: Any) -> Iterator[Any]:
        yield SimpleNamespace(
            runtime=None, record=SimpleNamespace(endpoints=SimpleNamespace(http="", grpc="", metrics=""), asked={})
        )

    def failed(*_: Any) -> Any:
        raise LabError("echo had no first response")

    monkeypatch.setattr(bench, "ephemeral", up)
    monkeypatch.setattr("labctl.orchestrator.running.explainer", lambda *_: str)
    monkeypatch.setattr("labctl.measure.workloads.bench.run", failed)
    monkeypatch.setattr(bench, "death", lambda *_: LabError("quick died: killed by SIGFPE") if dead else None)
    session: Any = SimpleNamespace(listener=Silent())
    lab: Any = None
    with pytest.raises(LabError, match=said):
        bench.bench(session, lab, "quick", UpOptions(), "echo", Workload(PROMPTS, 1, 1, 0, None, 0, None), [1])
