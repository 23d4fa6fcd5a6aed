"""Lab 02's stack as a person uses it."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from checkout import ROOT
from gpt2_streams import Stream
from lab_server import LabServer
from machinery import labctl
from own_stack import STACK, server_of, state
from pacing import slowed
from waiting import DEADLINE_S

from labkit.evidence.records import token_overlap

pytestmark = pytest.mark.xdist_group("iterative")


def test_status_tells_endpoints_models_and_settings(lab_server: Callable[..., LabServer], checkout: Path) -> None:
    lab_server(STACK)
    shown = json.loads(labctl("status", STACK, "--json", root=checkout).stdout)
    assert (shown["state"], shown["runtime"], shown["triton"]) == ("ready", "local", "2.51.0")
    assert {m["name"]: m["state"] for m in shown["models"]} == {"simple-gpt2": "READY", "iterative-gpt2": "READY"}
    assert shown["settings"]["kv_cache"] is True
    assert Path(shown["settings"]["tokenizer_dir"], "tokenizer.json").is_file()


def test_it_listens_on_loopback_only(lab_server: Callable[..., LabServer]) -> None:
    server = lab_server(STACK)
    ports = {int(endpoint.split(":")[1]) for endpoint in (server.http, server.grpc, server.metrics)}
    listening = {
        c.laddr.ip.removeprefix("::ffff:")
        for c in psutil.net_connections("tcp")
        if c.status == "LISTEN" and c.laddr and c.laddr.port in ports
    }
    assert listening == {"127.0.0.1"}


def test_up_again_says_so_and_with_other_settings_refuses(lab_server: Callable[..., LabServer], checkout: Path) -> None:
    lab_server(STACK)
    again = labctl("up", STACK, "--runtime", "local", root=checkout)
    assert "already up with these settings" in again.stderr
    other = labctl("up", STACK, "--runtime", "local", "--set", "max_batch_size=2", root=checkout, check=False)
    assert other.returncode == 1
    assert "max_batch_size: it runs with 8, you asked for 2" in other.stderr
    assert f"labctl down {STACK}" in other.stderr


def test_infer_and_bench_and_metrics_work_on_a_running_stack(
    lab_server: Callable[..., LabServer], checkout: Path
) -> None:
    lab_server(STACK)
    answer = labctl("infer", STACK, "-m", "iterative-gpt2", "-p", "I have lived in", "-o", "5", "-S", root=checkout)
    assert answer.stdout.startswith("I have lived in ")
    table = labctl("bench", STACK, "--concurrency", "2", "--request-count", "4", "--output-tokens", "8", root=checkout)
    assert "2 in flight" in table.stdout
    assert "iterative-gpt2" in labctl("metrics", STACK, root=checkout).stdout
    assert state(checkout) == "ready", "bench took down a stack that was up before it"


def test_bench_against_the_engine_accounts_for_all_of_the_time(
    lab_server: Callable[..., LabServer], checkout: Path, tmp_path: Path
) -> None:
    lab_server(STACK)
    few = ("--request-count", "4", "--output-tokens", "5", "--rounds", "1")
    shown = labctl("bench", STACK, "--against-engine", *few, "--output", str(tmp_path / "r.json"), root=checkout).stdout
    assert "Served, the work is done at" in shown
    found = json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))["metrics"]["against_engine"]
    served, alone = found["served"], found["alone"]
    assert alone["steps"] == 5, "all four at once"
    assert 5 <= served["steps"] <= 20
    for one in (served, alone):
        parts = {name: seconds for name, seconds in one.items() if name not in ("seconds", "steps", "step_ms")}
        assert sum(parts.values()) == pytest.approx(one["seconds"], abs=1e-6)
        assert all(seconds > -1e-5 for seconds in parts.values())
    assert served["wire"] > alone["wire"] == 0
    assert state(checkout) == "ready", "bench took down a stack that was up before it"
    assert not list((checkout / ".labs").rglob("against-*")), "what the engine alone was asked for is gone"


def test_ten_thousand_requests_at_once_are_all_answered_in_bounded_memory(
    lab_server: Callable[..., LabServer], checkout: Path
) -> None:
    endpoint = lab_server(STACK).grpc
    server = server_of(checkout)
    assert server
    with Stream(endpoint, "simple-gpt2") as stream:
        for number in range(10_000):
            stream.send(str(number), b"The", {"max_tokens": 1})
        names = {stream.next(timeout=DEADLINE_S)[0] for _ in range(10_000)}
    assert len(names) == 10_000
    everyone = [server, *server.children(recursive=True)]
    assert sum(process.memory_info().rss for process in everyone) < 4 * 2**30
    assert state(checkout) == "ready"


def test_the_two_prompts_of_the_lab_overlap_under_iterative_scheduling_alone(
    lab_server: Callable[..., LabServer],
) -> None:
    """Steps last so long that the second prompt comes while the first is answered, on however busy a machine."""
    server, tokens = lab_server(STACK), 32
    for model, least, most in (("simple-gpt2", 0.0, 0.0), ("iterative-gpt2", 0.5, 1.0)):
        with slowed(server.run_dir, model):
            first, second = lab_02().two_prompts(server.grpc, model, tokens)
        assert least <= token_overlap(first, second) <= most
        assert second.start < first.end, "the second prompt came when the first was answered"


def lab_02() -> Any:
    """Its client, as a module."""
    spec = importlib.util.spec_from_file_location("lab_02", ROOT / "labs/02-iterative-scheduling/client.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
