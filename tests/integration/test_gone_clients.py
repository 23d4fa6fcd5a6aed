"""Hundreds of clients that leave before their first answer, of every kind of model (faults 18 and 39)."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from each_lab import LABS, PROMPT
from lab_server import LabServer
from machinery import labctl
from waiting import eventually

from labctl.catalog import load_catalog
from labctl.clock import Clock
from labctl.options import Options
from labctl.pages.live.asking import Asker
from labctl.pages.live.events import AskEvent
from labctl.plan import make_plan
from labctl.workspace import Workspace
from labkit.client import metrics

pytestmark = pytest.mark.night

CLIENTS = {"iterative": 1000, "llama": 30}  # Hugging Face answers a few in a second, also to nobody
OTHERS = 200
ALL_GONE_S = 600.0  # the models answer what they have begun, also to nobody
STACKS = [row[:1] + row[2:] for lab, row in LABS.items() if lab != "sequence"]  # a sequence is not one request


def leave(endpoint: str, path: str, body: dict[str, Any], count: int) -> None:
    """Ask over HTTP, so many times, and close every connection before the first answer."""
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n".encode()
    host, port = endpoint.rsplit(":", 1)
    opened = []
    for _ in range(count):
        connection = socket.create_connection((host, int(port)), timeout=ALL_GONE_S)
        connection.sendall(head + data)
        opened.append(connection)
    for connection in opened:
        connection.close()


def in_flight(server: LabServer) -> float:
    """Requests that Triton has, and those that the models themselves say they have."""
    with suppress(Exception):
        seen = metrics.scrape(server.metrics)
        own = [value for (_, name), value in seen.own.items() if name in ("labs_running", "labs_waiting")]
        return sum(model.pending for model in seen.models.values()) + sum(own)
    return -1.0


def steps(server: LabServer, model: str) -> list[dict[str, Any]]:
    """Those that are written to the end of their line; an answer comes before its step's."""
    texts = [path.read_text() for path in server.run_dir.glob(f"steps-{model}-*.jsonl")]
    lines = [json.loads(line) for text in texts for line in text.splitlines(keepends=True) if line.endswith("\n")]
    return [line for line in lines if line["kind"] == "step"]


@pytest.mark.parametrize(
    ("stack", "settings"), [pytest.param(*row[:2], marks=pytest.mark.xdist_group(row[2])) for row in STACKS]
)
def test_fault_39_hundreds_of_clients_that_leave_before_their_first_answer_leave_nothing_in_flight(
    stack: str, settings: dict[str, Any], lab_server: Callable[..., LabServer], checkout: Path
) -> None:
    server = lab_server(stack, **settings)
    workspace = Workspace.find(Path(__file__))
    lab, name = load_catalog(workspace).stack(stack)
    for model, probe in make_plan(workspace, lab, name, Options(set=settings)).served.probes.items():
        body = {**probe.body, **({"max_tokens": 20, "ignore_eos": True} if "gpt2" in model else {})}
        leave(server.http, f"/v2/models/{model}/{probe.path}", body, CLIENTS.get(stack, OTHERS))
    eventually(lambda: in_flight(server) == 0, ALL_GONE_S)
    eventually(lambda: '"ready"' in labctl("status", stack, "--json", root=checkout).stdout)
    model = next(row[1] for row in LABS.values() if row[0] == stack)
    assert labctl("infer", stack, "-m", model, "-p", PROMPT, "-o", "3", root=checkout).stdout.startswith(PROMPT)


@pytest.mark.xdist_group("iterative")
def test_fault_39_a_thousand_http_clients_that_leave_cost_a_step_each_at_most_and_no_second_of_silence(
    lab_server: Callable[..., LabServer], checkout: Path
) -> None:
    """Each of them once held its slot for a second: eight slots, and a step a second for minutes."""
    server, model = lab_server("iterative"), "iterative-gpt2"
    body = {"text_input": "Hello", "max_tokens": 20, "ignore_eos": True}
    began = time.monotonic()
    leave(server.http, f"/v2/models/{model}/generate_stream", body, 1000)
    eventually(lambda: in_flight(server) == 0, ALL_GONE_S)
    # Another client's slot is taken over after a second of silence only where nobody could be asked.
    assert not [name for step in steps(server, model) if step["t"] > began for name in step.get("evicted", [])]
    before = len(steps(server, model))
    labctl("infer", "iterative", "-m", model, "-p", PROMPT, "-o", "3", root=checkout)
    eventually(lambda: len(steps(server, model)) - before == 3)


@pytest.mark.xdist_group("llm")
def test_cancel_on_the_page_ends_a_request_inside_an_ensemble(
    lab_server: Callable[..., LabServer], checkout: Path
) -> None:
    """Triton tells no model inside an ensemble that a client has gone: the page says `stop` to the engine."""
    server = lab_server("inflight-batching", model="random:tiny-llama")
    told: list[AskEvent] = []
    asker = Asker(server.grpc, ["preprocessing", "tensorrt_llm", "postprocessing", "ensemble"], told.append)
    began = time.monotonic()
    labctl("clock", "inflight-batching", "pause", root=checkout)
    try:
        running, waiting = asker.send("ensemble", PROMPT, 400, count=2)
        clock = Clock(server.run_dir, ("tensorrt_llm",))
        eventually(lambda: [s for s in clock.states("tensorrt_llm") if {running, waiting} <= set(s.get("ids", []))])
        assert asker.cancel(running)
        eventually(lambda: [one for one in told if one["n"] == running and one.get("state") == "cancelled"])
    finally:
        labctl("clock", "inflight-batching", "run", root=checkout)
    eventually(lambda: [one for one in told if one["n"] == waiting and one.get("state") == "done"])

    def steps_with(id: str) -> int:
        return sum(id in step["ids"] for step in steps(server, "tensorrt_llm") if step["t"] > began)

    eventually(lambda: steps_with(waiting) == 400)
    assert not steps_with(running), "it was cancelled before its first step"
