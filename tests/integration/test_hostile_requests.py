"""A few hundred requests from good to deadly, except those that end Triton 2.51 itself (``make bench ARGS=fuzz``)."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lab_server import LabServer
from machinery import ROOT

from labctl.runtimes.local import LocalRuntime
from labctl.workspace import Workspace

sys.path.insert(0, str(ROOT))  # benchmarks/ is no package that anybody installs
from benchmarks.fuzz import Found, fuzz
from benchmarks.hostile.send import ANSWERED, CANCELLED, REFUSED, SILENCE
from benchmarks.hostile.watch import Watch

SEED = 1
PATIENCE_S = 120.0  # of a client on a machine that is busy with other tests


@pytest.mark.parametrize(
    ("stack", "settings"),
    [
        pytest.param("iterative", {"threads": 1}, marks=pytest.mark.xdist_group("test_hostile_sequences")),
        pytest.param("codegen", {}, marks=pytest.mark.xdist_group("codegen")),
    ],
)
def test_fault_24_no_request_silences_ends_or_disables_anything(
    stack: str, settings: dict[str, Any], lab_server: Callable[..., LabServer], checkout: Path, cache: Path
) -> None:
    lab_server(stack, **settings)
    runtime = LocalRuntime(Workspace(checkout, cache))
    record: Any = runtime.find(stack)
    holds(fuzz(Watch(runtime, record, PATIENCE_S), 200, SEED))


@pytest.mark.xdist_group("test_hostile_sequences")
def test_behind_the_guard_not_even_shared_sequence_ids_silence_anybody(
    lab_server: Callable[..., LabServer], checkout: Path, cache: Path
) -> None:
    """Of those that share an id, on loopback, Triton forgets some (docs/operate/security.md)."""
    lab_server("iterative", "--expose", threads=1)
    runtime = LocalRuntime(Workspace(checkout, cache))
    record: Any = runtime.find("iterative")
    holds(fuzz(Watch(runtime, record, PATIENCE_S), 200, SEED, deadly=True, losing=True))


def holds(found: Found) -> None:
    """Everybody had an answer, and nothing is worse than before."""
    assert found.silent == []
    assert found.outcomes[SILENCE] == 0
    assert found.deaths == []
    assert found.stubs_dead == 0
    assert found.leaked == {}
    assert found.disabled == {}
    assert found.words == {}, "no client reads the inside of a model"
    assert min(found.outcomes[what] for what in (ANSWERED, REFUSED, CANCELLED)) > 0, "it was a mixture"
