"""A sick server for real: its step log shows the fault to the reference detector, and answers are judged by it."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from checkout import ROOT
from machinery import labctl, started
from own_stack import leftovers
from waiting import eventually

from labctl.mystery import case
from labctl.workspace import Workspace
from labkit.predict import clinic

pytestmark = [pytest.mark.night, pytest.mark.xdist_group("llm")]
FAULTS = case.find_faults(Workspace(ROOT, ROOT / "unused"))
LOCAL = ("--runtime", "local", "--ports", "auto")


@pytest.mark.usefixtures("engines_made")
def test_a_mystery_shows_itself_in_the_step_log_and_only_the_right_answer_holds(own: Path) -> None:
    fault = FAULTS["leaking_slot"]
    labctl("mystery", "start", "--code", case.draw_code(FAULTS, fault.name), *LOCAL, root=own)
    steps = case.logged_steps(Workspace(own, own / "cache"))
    assert fault.sick(steps)
    own_fields = {"v", "model", "instance"}
    recorded = clinic.record_fault(fault, "1")[0].keys()
    assert {*steps[0]} - own_fields == {*recorded}
    exact = {"leaking_slot", "ghosts", "evicts_the_oldest", "last_come_first", "leaking_memory", "counts_blocks_twice"}
    assert [name for name in exact if FAULTS[name].sick(steps)] == [fault.name]
    shown = {step["n"] for step in fault.shows(steps)}
    good, bad = f"step={min(shown)}", f"step={min(step['n'] for step in steps if step['n'] not in shown)}"
    for name, evidence, held in (
        (fault.name, good, [True, True]),
        (fault.name, bad, [True, False]),
        ("ghosts", good, [False, False]),
        (fault.name, "counter=labs_steps_total", [True, False]),
    ):
        done = labctl("mystery", "answer", name, "--evidence", evidence, "--json", root=own, check=False)
        assert [row["holds"] for row in json.loads(done.stdout)] == held
        assert done.returncode == (0 if all(held) else 1)
    served = own / ".labs" / case.STACK / "repository"
    assert not any(fault.name.encode() in path.read_bytes() for path in served.rglob("*") if path.is_file())
    labctl("mystery", "stop", root=own)
    assert leftovers(own, case.STACK) == []
    assert "no sick server is up" in labctl("mystery", "load", root=own, check=False).stderr


@pytest.mark.usefixtures("engines_made")
def test_a_counter_that_shows_the_fault_is_evidence_and_a_reload_cures_the_server(own: Path) -> None:
    code = case.draw_code(FAULTS, "half_the_slots")
    labctl("mystery", "start", "--code", code, *LOCAL, root=own)
    again = labctl("mystery", "start", *LOCAL, root=own, check=False)
    assert again.returncode == 1 and f"{case.STACK} is up already" in again.stderr
    counter = "counter=labs_tokens_total"
    labctl("mystery", "answer", "half_the_slots", "--evidence", counter, root=own)
    labctl("reload", case.STACK, root=own)
    done = labctl("mystery", "answer", "half_the_slots", "--evidence", counter, root=own, check=False)
    assert done.returncode == 1 and "is up without the fault" in done.stderr


@pytest.mark.usefixtures("engines_made")
def test_what_a_killed_start_has_left_is_taken_down(own: Path) -> None:
    with started(own, "mystery", "start", *LOCAL) as command:
        eventually((own / ".labs" / case.STACK / "state.json").exists, timeout=240)
        command.send_signal(signal.SIGKILL)
        command.wait()
    labctl("down", case.STACK, root=own)
    assert leftovers(own, case.STACK) == []
