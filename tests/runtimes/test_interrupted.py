"""Ctrl-C and SIGTERM in the midst of a tear-down, a reload and a restart, on real servers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import psutil
import pytest
from machinery import found, labctl, runtime, started, status
from own_stack import server_of
from waiting import DEADLINE_S, eventually

from labctl.runtimes.lock import holder
from labctl.triton import server_api
from labctl.workspace import Workspace

STACK = "quick"
INTERRUPTS = pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
# It says that it loads, and is loaded once the file beside it is gone.
WAITS = """
import pathlib, sys, time
print("moody waits", flush=True)
while pathlib.Path(__file__).with_name("wait").exists():
    time.sleep(0.05)
"""


def on(where: str) -> tuple[str, ...]:
    return ("--runtime", where, "--ports", "auto")


def interrupt(process: subprocess.Popen[str], number: int) -> None:
    """As a terminal does it (its whole group), or as a service manager does."""
    os.killpg(process.pid, number) if number == signal.SIGINT else process.terminate()


def first_process(root: Path, where: str) -> int:
    """The pid of the server, or of the first process of its container."""
    if where == "local":
        server = server_of(root, STACK)
        assert server
        return server.pid
    from machinery import container

    return int(container(root, STACK).attrs["State"]["Pid"])


def is_asked_to_stop(pid: int) -> bool:
    """Whether SIGTERM waits for a process that is stopped."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    masks = [int(line.split()[1], 16) for line in lines if line.startswith(("SigPnd:", "ShdPnd:"))]
    return any(mask >> (signal.SIGTERM - 1) & 1 for mask in masks)


def answer(root: Path) -> str:
    """What the model that can be edited says to a greeting."""
    endpoint = status(root, STACK)["endpoints"]["http"]
    code, body = server_api.call_triton(
        endpoint, "POST", "/v2/models/moody/generate", {"text_input": "hello"}, timeout=DEADLINE_S
    )
    assert code == 200, body
    return str(json.loads(body)["text_output"])


@INTERRUPTS
def test_fault_47_a_graceful_down_that_is_interrupted_goes_on_forcefully_to_its_end(
    own: Path, where: str, number: int, code: int
) -> None:
    labctl("up", STACK, *on(where), root=own)
    server = first_process(own, where)
    psutil.Process(server).suspend()  # it would wait for this server as long as a server may take
    with started(own, "down", STACK) as process:
        eventually(lambda: is_asked_to_stop(server))
        interrupt(process, number)
        _, err = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == code, err
    assert "Traceback" not in err
    assert runtime(own, where).leftovers(STACK) == []
    assert status(own, STACK)["state"] == "absent"


@INTERRUPTS
def test_fault_47_a_reload_that_is_interrupted_leaves_the_former_version_and_says_so(
    own: Path, where: str, number: int, code: int
) -> None:
    labctl("up", STACK, *on(where), root=own)
    model = own / "model_repos" / "faults" / "moody" / "1" / "model.py"
    (model.parent / "wait").touch()
    model.write_text(model.read_text().replace('("text_output", text)', '("text_output", text + b", edited")') + WAITS)
    assert answer(own) == "hello"
    with started(own, "reload", STACK) as process:
        eventually(lambda: "moody waits" in labctl("logs", STACK, root=own).stdout)
        interrupt(process, number)
        _, err = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == code, err
    assert "Traceback" not in err
    assert "the version of moody that was loaded before serves on" in err
    assert answer(own) == "hello"
    edits = status(own, STACK)["edited"]
    assert [edit["loaded"] for edit in edits if edit["file"].endswith("model.py")] == [False]
    (model.parent / "wait").unlink()
    labctl("reload", STACK, root=own)
    assert answer(own) == "hello, edited"


def test_fault_47_a_restart_that_is_interrupted_holds_no_lock_and_leaves_what_status_says(
    own: Path, where: str
) -> None:
    labctl("up", STACK, "--timeout", "777", *on(where), root=own)
    before = found(own, STACK)
    server = first_process(own, where)
    psutil.Process(server).suspend()
    with started(own, "restart", STACK) as process:
        eventually(lambda: is_asked_to_stop(server))
        interrupt(process, signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 143
    assert holder(Workspace(own, own / "cache"), STACK) is None
    assert status(own, STACK)["state"] == "absent"
    assert runtime(own, where).leftovers(STACK) == []
    labctl("up", STACK, "--timeout", "777", *on(where), root=own)
    labctl("restart", STACK, root=own)
    after = found(own, STACK)
    assert before and after and (after.options.timeout, after.settings) == (777, before.settings)
