"""Nothing stands before Triton: one request may end it, which is told with the signal, never in silence."""

from __future__ import annotations

import contextlib
import http.client
import json
from pathlib import Path

from machinery import labctl, status
from waiting import DEADLINE_S, eventually

STACK = "quick"
CLASSIFICATION = {
    "inputs": [{"name": "text_input", "datatype": "BYTES", "shape": [1, 1], "data": ["hello"]}],
    "outputs": [{"name": "text_output", "parameters": {"classification": 1}}],
}


def up(root: Path, where: str) -> str:
    labctl("up", STACK, "--runtime", where, "--ports", "auto", root=root)
    return str(status(root, STACK)["endpoints"]["http"])


def end(endpoint: str) -> None:
    """Upstream's own defect, mended in 2.60: it divides by the size of an element, which a text does not have."""
    connection = http.client.HTTPConnection(endpoint, timeout=DEADLINE_S)
    with contextlib.suppress(OSError, http.client.HTTPException):
        connection.request("POST", "/v2/models/echo/infer", json.dumps(CLASSIFICATION))
        connection.getresponse()
    connection.close()


def test_fault_12_a_server_that_died_is_told_as_such_with_the_signal(own: Path, where: str) -> None:
    end(up(own, where))
    shown = eventually(lambda: found if (found := status(own, STACK))["state"] == "failed" else None)
    assert shown["ended"] == "killed by SIGFPE"
    asked = labctl("infer", STACK, "-m", "echo", "-p", "hello", root=own, check=False)
    assert asked.returncode == 1
    assert "died: killed by SIGFPE" in asked.stderr and "Traceback" not in asked.stderr
    labctl("down", STACK, root=own)
    assert status(own, STACK)["state"] == "absent"


def test_fault_26_a_model_whose_scheduler_has_ended_is_told_by_status_and_to_clients(own: Path, where: str) -> None:
    """Its thread failed outside a step. Triton goes on calling it READY."""
    model = own / "labs" / "07-scale-out" / "models" / "streams" / "1" / "model.py"
    job = "        return Words(words"
    text = model.read_text()
    assert job in text
    model.write_text(
        text.replace(
            job, f"        if 'break' in words:\n            self.driver.clients = self.driver.give_up = None\n{job}"
        )
    )
    labctl("up", "scaled", "--runtime", where, "--ports", "auto", root=own)
    assert status(own, "scaled")["state"] == "ready"
    ask = ("infer", "scaled", "-m", "streams", "-o", "1", "-p")
    labctl(*ask, "break it", root=own, check=False)
    shown = eventually(lambda: found if (found := status(own, "scaled"))["state"] == "degraded" else None)
    (row,) = [row for row in shown["models"] if row["name"] == "streams"]
    assert row["state"] == "UNAVAILABLE" and "TypeError" in row["reason"]
    later = labctl(*ask, "hello", root=own, check=False)
    assert later.returncode == 1 and "TypeError" in later.stderr, later
