"""Envoy as the balancer of replicas: what it thinks of its configuration, and what it does with requests."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from counting_servers import Balanced, Counting, balanced
from waiting import eventually

from labctl.runtimes.envoy import config as envoy
from labkit.client.sequences import SequenceClient

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.parametrize("policy", [policy for policy in envoy.POLICIES if policy])
def test_envoy_finds_every_policy_good(policy: str, tmp_path: Path) -> None:
    command = [str(envoy.binary()), *envoy.envoy_arguments(str(Balanced(tmp_path, policy).configure()), validate=True)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "deprecated" not in done.stderr


@pytest.fixture(scope="module")
def hashed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Balanced]:
    with balanced(tmp_path_factory.mktemp("hash"), "hash") as one:
        yield one


def test_a_sequence_stays_with_one_server_and_the_servers_share_them(hashed: Balanced) -> None:
    homes = [{hashed.ask(x_sequence_id=str(name)) for _ in range(3)} for name in range(40)]
    assert {len(home) for home in homes} == {1}
    assert len({answer for home in homes for answer in home}) == 2


def test_requests_without_the_header_all_go_to_one_server(hashed: Balanced) -> None:
    assert len({hashed.ask() for _ in range(20)}) == 1


def test_the_trace_of_a_client_reaches_the_server(hashed: Balanced) -> None:
    hashed.ask(traceparent=TRACE, x_sequence_id="traced")
    assert TRACE in [headers.get("traceparent") for server in hashed.servers for headers in server.headers]


def test_envoys_own_interface_is_not_to_be_reached_but_for_its_counters(hashed: Balanced) -> None:
    status, page = hashed.get(hashed.place.metrics, "/metrics")
    assert status == 200
    assert "envoy_cluster_endpoint_rq_total" in page
    for path in ("/", "/stats", "/config_dump", "/quitquitquit", "/clusters"):
        assert hashed.get(hashed.place.metrics, path)[0] == 404
        assert hashed.get(hashed.place.http, path)[0] == 404
    assert (hashed.folder / "admin").stat().st_mode & 0o777 == 0o600


def test_a_draining_server_answers_what_it_has_and_gets_nothing_new(tmp_path: Path) -> None:
    with balanced(tmp_path, "l7") as one, ThreadPoolExecutor(4) as pool:
        held = [pool.submit(one.ask, "/v2/models/m/held") for _ in range(4)]
        for server in one.servers:
            assert server.begun.acquire(timeout=60)
        one.name_servers(1)
        eventually(lambda: (seen := one.seen().get(1)) and seen.draining and seen.active >= 1)
        first, second = (str(server.server_port) for server in one.servers)
        eventually(lambda: Counter(one.ask()[1] for _ in range(10)) == {second: 10})
        for server in one.servers:
            server.go.set()
        assert {future.result() for future in held} == {(200, first), (200, second)}
        eventually(lambda: (seen := one.seen().get(1)) and seen.active == 0)
        one.name_servers(without=[1])
        eventually(lambda: list(one.seen()) == [2])


def test_a_request_that_its_server_cannot_answer_any_more_is_answered_by_another(tmp_path: Path) -> None:
    with balanced(tmp_path, "l7") as one:
        one.servers[0].dies()
        assert Counter(one.ask() for _ in range(20)) == {(200, str(one.servers[1].server_port)): 20}
        eventually(lambda: (seen := one.seen().get(1)) and not seen.healthy)


def test_a_server_that_envoy_finds_well_again_gets_the_requests_of_the_next_that_dies(tmp_path: Path) -> None:
    with balanced(tmp_path, "l7") as one:
        for number in (1, 2, 1, 2):
            dead = one.servers[number - 1]
            dead.dies()
            eventually(partial(_gets_nothing, one, number))
            one.servers[number - 1] = Counting(dead.server_port)
            eventually(partial(_is_well, one, number))
            other = one.servers[number % 2]
            other.dies()
            assert Counter(one.ask()[0] for _ in range(20)) == {200: 20}
            one.servers[number % 2] = Counting(other.server_port)
            eventually(lambda: len(seen := one.seen()) == 2 and all(server.healthy for server in seen.values()))


def _gets_nothing(one: Balanced, number: int) -> bool:
    return one.ask()[0] == 200 and (seen := one.seen().get(number)) is not None and not seen.healthy


def _is_well(one: Balanced, number: int) -> bool:
    return (seen := one.seen().get(number)) is not None and seen.healthy


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_our_clients_tell_a_balancer_which_sequence_a_request_is_of(
    protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[Any] = []

    def infer(self: object, *_: object, **given: Any) -> Any:
        sent.append(given["headers"])
        return SimpleNamespace(as_numpy=lambda name: np.array([b"token"]))

    kind: Any = tritonclient.grpc if protocol == "grpc" else tritonclient.http
    monkeypatch.setattr(kind.InferenceServerClient, "infer", infer)
    monkeypatch.setattr(SequenceClient, "_names", lambda self: ("text", "answer"))
    with SequenceClient("127.0.0.1:1", "m", protocol) as client:
        client.ask("hello", 1001, start=True)
    assert sent == [{"x-sequence-id": "1001"}]
