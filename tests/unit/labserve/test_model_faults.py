"""A model's own fault, told with type, message, and the line of the file that a person edits."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from checkout import ROOT

from labctl.catalog import load_catalog
from labctl.options import Options
from labctl.plan import Plan, make_plan
from labctl.runtimes.local import LocalRuntime
from labctl.stack import faults
from labctl.triton import server_api
from labctl.workspace import Workspace
from labkit.errors import LabError

ENTRY = "internal error in iterative-gpt2 (see the server's log, entry {})"
TRACEBACK = """
Traceback (most recent call last):
  File "{root}/iterative-gpt2/1/model.py", line 60, in execute
    here.append((request, self.sequence_of(request, started)))
                          ~~~~~~~~~~~~~~~~^^^^^^^^^^^^^^^^^^
  File "{root}/iterative-gpt2/1/model.py", line {line}, in sequence_of
    kept = self.begin(text)
  File "/somewhere/labserve/gpt2/sequences.py", line 9, in new_sequence
    return by_name['{key}']
KeyError: '{key}'
"""
HEAD = "E1122 04:27:10.985854 2026 model.py:44] "


def line(message: str) -> str:
    """As Triton logs it."""
    return HEAD + json.dumps(message)


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    workspace = Workspace(ROOT, tmp_path)
    lab, stack = load_catalog(workspace).stack("iterative")
    return make_plan(workspace, lab, stack, Options())


@pytest.fixture
def explain(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> faults.Explain:
    root = plan.request.output
    old, new = (TRACEBACK.format(root=root, line=n, key=key) for n, key in ((7, "a"), (101, "b")))
    log = [line(ENTRY.format(1) + old), "printed", line(ENTRY.format(1) + new), line("KeyError: 'c'")]
    monkeypatch.setattr(faults, "whole_log", lambda runtime, stack: log)
    there: Any = SimpleNamespace(plan=plan, name=plan.name, runtime=LocalRuntime(Workspace(ROOT, ROOT)))
    return faults.stack_explainer(there)


def test_an_entry_of_the_log_becomes_type_message_and_the_line_that_a_person_edits(explain: faults.Explain) -> None:
    """The last entry of that number: a model that was loaded again has counted from one again."""
    assert explain(f"in ensemble 'e', {ENTRY.format(1)}") == (
        "in ensemble 'e', KeyError: 'b' (model_repos/iterative/iterative-gpt2/1/model.py:101)"
    )


def test_an_entry_that_the_log_does_not_have_stays_as_it_is(explain: faults.Explain) -> None:
    assert explain(ENTRY.format(7)) == ENTRY.format(7)


def test_an_entry_that_is_written_after_the_client_was_told_is_waited_for(
    explain: faults.Explain, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty: list[str] = []
    logs = iter([empty, [line(ENTRY.format(1))], faults.whole_log(None, "")])  # type: ignore[arg-type]
    monkeypatch.setattr(faults, "whole_log", lambda runtime, stack: next(logs))
    assert explain(ENTRY.format(1)).startswith("KeyError: 'b'")


def test_every_part_of_an_error_is_explained(explain: faults.Explain) -> None:
    told = faults.explain_error(LabError("a", ENTRY.format(1), "c", [ENTRY.format(1)], code="any"), explain)
    assert (told.what, told.remedy) == ("a", "c")
    assert told.why == told.details[0] == "KeyError: 'b' (model_repos/iterative/iterative-gpt2/1/model.py:101)"


def test_the_guard_writes_what_is_looked_for_here() -> None:
    source = (ROOT / "src/labserve/guard.py").read_text()
    written = re.search(r'message = f"(.*)"', source)
    assert written
    words = written[1].replace("{self.model}", "iterative-gpt2").replace("{self._entries}", "3")
    assert faults.ENTRY.fullmatch(words)
    assert faults.log_entries([f'E1122 "{words}', "x", f'E1122 "{words}']) == [words]


def test_the_log_shows_a_traceback_line_by_line_and_no_control_character() -> None:
    shown = list(server_api.readable_log([line("a \"quoted\"\nKeyError: 'b'"), line("\x1b[2J\nb"), "printed"]))
    assert shown == [f"{HEAD}a \"quoted\"\nKeyError: 'b'", f"{HEAD}\\u001b[2J\nb", "printed"]
