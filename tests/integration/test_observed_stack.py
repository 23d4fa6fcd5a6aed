"""Prometheus beside a real stack under load: every panel's query has data, and nothing of it is left."""

from __future__ import annotations

import json
import os
import re
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import tritonclient.grpc as grpcclient
from board_tables import dashboards
from checkout import ROOT
from machinery import labctl
from prometheus_here import prometheus, query
from waiting import eventually

from labkit.clients import tensors

__all__ = ["prometheus"]
PATIENCE_S = 240.0
pytestmark = [pytest.mark.night, pytest.mark.xdist_group("observe")]


def test_rules_are_good_and_do_what_their_tests_say(prometheus: Path) -> None:
    promtool = str(prometheus / "promtool")
    for words in (
        ["check", "config", "prometheus.yaml"],
        ["check", "rules", "rules.yaml"],
        ["test", "rules", "rules.test.yaml"],
    ):
        done = subprocess.run(
            [promtool, *words], cwd=ROOT / "docker" / "observe", capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"


@pytest.fixture
def observed(own: Path, prometheus: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[dict[str, Any], str]]:
    """Two small replicas behind Envoy, under load; the status, and Prometheus' address."""
    monkeypatch.setenv("PATH", f"{prometheus}:{os.environ['PATH']}")
    small = ["--set", "model=random:tiny-llama", "--set", "max_num_sequences=4", "--replicas", "2"]
    done = labctl(
        "up", "inflight-batching", "--runtime", "local", "--ports", "auto", "--observe", "--json", *small, root=own
    )
    (address,) = re.findall(r"Prometheus: http://(\S+)", done.stdout + done.stderr)
    shown = json.loads(done.stdout[done.stdout.index("{") :])
    end = threading.Event()
    threads = [threading.Thread(target=ask, args=(shown["endpoints"]["grpc"], end), daemon=True) for _ in range(12)]
    for thread in threads:
        thread.start()
    yield shown, address
    end.set()
    for thread in threads:
        thread.join()
    folder = own / ".labs" / "inflight-batching" / "observe"
    assert folder.is_dir()
    labctl("down", "inflight-batching", root=own)
    assert not folder.exists(), "down takes Prometheus' data with it"
    assert [p.pid for p in psutil.process_iter(["cmdline"]) if str(folder) in " ".join(p.info["cmdline"] or ())] == []


def ask(endpoint: str, end: threading.Event) -> None:
    """One request after the other."""
    client = grpcclient.InferenceServerClient(endpoint)
    inputs = [
        tensors.text_tensor("text_input", "the"),
        tensors.tensor("max_tokens", 20, np.uint32),
        tensors.text_tensor("bad_words", ""),
        tensors.text_tensor("stop_words", ""),
    ]
    while not end.is_set():
        client.infer("ensemble", inputs)
    client.close()


def test_every_panel_of_every_dashboard_has_data_of_a_stack_under_load(observed: tuple[dict[str, Any], str]) -> None:
    _, address = observed
    expressions = {
        (panel["title"], target["legendFormat"]): target["expr"]
        for name in dashboards.DASHBOARDS
        for panel in dashboards.dashboard(name)["panels"]
        for target in panel["targets"]
    }
    empty = dict(expressions)

    def all_have_data() -> bool:
        for key, expression in list(empty.items()):
            filled = expression.replace("$__rate_interval", "1m").replace("$model", ".*").replace("$replica", ".*")
            if query(address, filled):
                del empty[key]
        return not empty

    try:
        eventually(all_have_data, PATIENCE_S)
    except AssertionError:
        pytest.fail(f"no data: {json.dumps({' / '.join(key): text for key, text in empty.items()}, indent=1)}")
    assert len(query(address, 'up{job="triton"} == 1')) == 2
    assert len(query(address, "sum by (instance) (nv_inference_request_success) > 0")) == 2, "each replica has a part"
