"""A stack of two replicas behind Envoy: who gets requests, and that none is lost, whatever becomes of a replica."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from killing import kill_front, kill_server
from listening import beyond_loopback, listeners, published
from machinery import copy_of_the_checkout, labctl, processes_about, runtime, status, taken_down, with_faults_lab
from tritonclient.utils import InferenceServerException
from waiting import DEADLINE_S, eventually

from labctl.runtimes import docker_engine
from labctl.runtimes.balancer import NICE
from labctl.runtimes.groups import groups
from labctl.workspace import Workspace
from labkit.client import metrics

STACK, MODEL = "quick", "echo"
GENERATE = f"/v2/models/{MODEL}/generate"
BODY = json.dumps({"text_input": "hello"})


@dataclass(frozen=True)
class Replicated:
    root: Path
    where: str

    @property
    def shown(self) -> dict[str, Any]:
        return status(self.root, STACK)

    @property
    def states(self) -> tuple[str, dict[int, str]]:
        shown = self.shown
        return shown["state"], {one["number"]: one["state"] for one in shown["replicas"]}

    def kill(self, number: int) -> None:
        kill_server(self.root, STACK, self.where, number)


@pytest.fixture(scope="module", params=["local", "compose"])
def replicated(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, snapshot: Path
) -> Iterator[Replicated]:
    """Up with two replicas; when it ends, nothing of it may be left."""
    where = request.param
    if where == "compose":
        request.getfixturevalue("images")
    root = with_faults_lab(copy_of_the_checkout(tmp_path_factory.mktemp("replicas") / "own", snapshot))
    labctl("up", STACK, "--runtime", where, "--ports", "auto", "--replicas", "2", root=root, timeout=600)
    try:
        yield Replicated(root, where)
    finally:
        taken_down(root)
        assert runtime(root, where).leftovers(STACK) == []
        assert processes_about(root) == []
        assert not [*Path("/dev/shm").glob("envoy_shared_memory*")]


@dataclass
class Load:
    """Requests from several connections for the time of a block; what became of each."""

    endpoint: str
    outcomes: Counter[str] = field(default_factory=Counter)
    _end: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Load:
        self._threads = [threading.Thread(target=self._ask) for _ in range(4)]
        for thread in self._threads:
            thread.start()
        eventually(lambda: self.outcomes["200"] > 20)
        return self

    def __exit__(self, *_: object) -> None:
        before = self.outcomes["200"]
        eventually(lambda: self.outcomes["200"] > before + 20)
        self._end.set()
        for thread in self._threads:
            thread.join()

    def _ask(self) -> None:
        connection = http.client.HTTPConnection(self.endpoint, timeout=DEADLINE_S)
        while not self._end.wait(0.01):  # a steady load, not all that the machine has
            try:
                connection.request("POST", GENERATE, BODY)
                response = connection.getresponse()
                said = response.read()
                self.outcomes[str(response.status) if response.status == 200 else said.decode()] += 1
            except (OSError, http.client.HTTPException) as error:
                self.outcomes[repr(error)] += 1
                connection.close()
        connection.close()


def test_requests_are_spread_and_counted_by_replica_and_as_a_whole(replicated: Replicated) -> None:
    shown = replicated.shown
    assert (shown["state"], shown["balance"]) == ("ready", "l7")
    assert [(one["number"], one["state"], one["serving"]) for one in shown["replicas"]] == [
        (1, "ready", True),
        (2, "ready", True),
    ]
    places = [endpoint for one in (shown, *shown["replicas"]) for endpoint in one["endpoints"].values()]
    assert len(set(places)) == 9
    counters = [one["endpoints"]["metrics"] for one in shown["replicas"]]
    before = [metrics.scrape(one).models[MODEL].succeeded for one in counters]
    with Load(shown["endpoints"]["http"]) as load:
        pass
    assert set(load.outcomes) == {"200"}

    def succeeded() -> list[float]:
        return [metrics.scrape(one).models[MODEL].succeeded for one in counters]

    # Triton counts a request when it has sent the answer.
    eventually(lambda: sum(succeeded()) - sum(before) == load.outcomes["200"])
    after = succeeded()
    shares = [now - then for now, then in zip(after, before, strict=True)]
    assert min(shares) > 0.3 * sum(shares)
    assert metrics.scrape(",".join(counters)).models[MODEL].succeeded == sum(after)


def test_no_replica_and_no_balancer_listens_beyond_loopback(replicated: Replicated) -> None:
    if replicated.where == "compose":
        places = published(replicated.root, STACK)
        assert len(places) == 3
    else:
        places = listeners(replicated.root)
        assert {"tritonserver", "envoy"} <= {*places}
    assert all(places.values()) and beyond_loopback(places) == {}


def test_where_processors_are_short_the_balancer_lets_the_servers_go_first(replicated: Replicated) -> None:
    if replicated.where == "compose":
        weights = {
            service: {one.attrs["HostConfig"]["CpuShares"] for one in found}
            for service in ("envoy", "triton")
            if (found := docker_engine.containers(str(replicated.root), STACK, service))
        }
        assert weights == {"envoy": {341}, "triton": {0}}  # 0 stands for 1024
        return
    nice: dict[str, set[int]] = {}
    for group in groups(Workspace(replicated.root, replicated.root).folder(STACK)):
        name, _, _ = group.part.partition("-")
        nice.setdefault(name, set()).update(process.nice() for process in group.members())
    ours = os.getpriority(os.PRIO_PROCESS, 0)
    assert nice == {"envoy": {ours + NICE}, "server": {ours}}


class Stream:
    """A gRPC stream on which requests are sent one at a time."""

    def __init__(self, endpoint: str) -> None:
        self._client = grpcclient.InferenceServerClient(endpoint, channel_args=[("grpc.use_local_subchannel_pool", 1)])
        self.answers, self.cut = 0, False
        self._client.start_stream(callback=self._arrived)

    def _arrived(self, result: object, error: object) -> None:
        self.cut = self.cut or error is not None
        self.answers += error is None

    def ask(self) -> bool:
        """Whether it is answered; else the stream was cut."""
        before = self.answers
        text = grpcclient.InferInput("text_input", [1, 1], "BYTES")
        text.set_data_from_numpy(np.array([[b"hello"]], dtype=np.object_))
        with contextlib.suppress(InferenceServerException):  # it has been cut
            self._client.async_stream_infer(MODEL, [text])
        eventually(lambda: self.cut or self.answers > before)
        return not self.cut

    def close(self) -> None:
        self._client.stop_stream(cancel_requests=True)
        self._client.close()


def test_fault_27_a_killed_replica_takes_no_unary_request_with_it_and_restart_heals_it(replicated: Replicated) -> None:
    endpoints = replicated.shown["endpoints"]
    streams = [Stream(endpoints["grpc"]) for _ in range(4)]
    with Load(endpoints["http"]) as load, contextlib.ExitStack() as closing:
        for stream in streams:
            closing.callback(stream.close)
            assert stream.ask()
        replicated.kill(2)
        eventually(lambda: any(stream.cut for stream in streams))  # it hears of it without asking
        eventually(lambda: not replicated.shown["replicas"][1].get("serving", True))
        whole = [stream for stream in streams if stream.ask()]
        assert 0 < len(whole) < len(streams)
        assert replicated.states == ("degraded", {1: "ready", 2: "failed"})
        labctl("restart", STACK, root=replicated.root)
        assert replicated.states == ("ready", {1: "ready", 2: "ready"})
    assert set(load.outcomes) == {"200"}


def test_fault_28_a_rolling_restart_and_scaling_lose_nothing(replicated: Replicated) -> None:
    with Load(replicated.shown["endpoints"]["http"]) as load:
        labctl("restart", STACK, "--rolling", root=replicated.root)
        labctl("scale", STACK, "3", root=replicated.root)
        assert replicated.states == ("ready", {1: "ready", 2: "ready", 3: "ready"})
        labctl("scale", STACK, "2", root=replicated.root)
        assert replicated.states == ("ready", {1: "ready", 2: "ready"})
    assert set(load.outcomes) == {"200"}


def test_fault_27_without_its_balancer_a_stack_is_degraded_and_restart_brings_it_back(replicated: Replicated) -> None:
    kill_front(replicated.root, STACK, replicated.where)
    shown = eventually(lambda: found if (found := replicated.shown)["state"] == "degraded" else None)
    assert "balancer" in shown["ended"]
    labctl("restart", STACK, root=replicated.root)
    assert replicated.shown["state"] == "ready"
