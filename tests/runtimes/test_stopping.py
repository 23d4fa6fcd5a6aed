"""``labctl down`` waits for what could be lost, and not for a client that keeps its stream open."""

from __future__ import annotations

from pathlib import Path

from machinery import labctl, runtime, status
from tritonclient.grpc import InferenceServerClient

STACK = "quick"


def test_an_open_stream_with_nothing_in_flight_does_not_hold_up_the_end(own: Path, where: str) -> None:
    lab = own / "labs" / "99-faults" / "lab.py"
    waits = "    return Served(\n        exit_timeout=3600,\n"  # longer than a test waits for labctl
    lab.write_text(lab.read_text().replace("    return Served(\n", waits))
    labctl("up", STACK, "--runtime", where, "--ports", "auto", root=own)
    with InferenceServerClient(status(own, STACK)["endpoints"]["grpc"]) as client:
        client.start_stream(lambda result, error: None)
        done = labctl("down", STACK, root=own)
        assert "did not stop within" not in done.stdout + done.stderr
        assert "Found 0 live models" in labctl("logs", STACK, root=own).stdout, "its models ended in good order"
        client.stop_stream(cancel_requests=True)
    assert runtime(own, where).leftovers(STACK) == []
