"""Replicas are killed (-9) one after the other under load, unary and streams; each comes back by ``labctl restart``.

No unary request may fail before its answer has begun. A stream that has begun to answer is cut, and must hear of it at
once.
"""

from __future__ import annotations

import http.client
import json
import signal
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc as grpcclient

from benchmarks.balancer import labctl
from benchmarks.kills import STACK, checkout, left
from benchmarks.servers import servers_of
from labctl.runtimes.local import LocalRuntime
from labkit.tables import format_table

USERS, STREAMS = 4, 4
CUT = "unary cut in their answer"  # Triton writes some of generate's answers in two pieces: the headers, then the rest
WHAT = ("unary answered", "unary failed", CUT, "answers on streams", "streams cut")
BODY = json.dumps({"text_input": "hello"})
GENERATE = "/v2/models/echo/generate"


class Load:
    """Requests without end, until ``stop``; ``found`` counts what became of them."""

    def __init__(self, http_endpoint: str, grpc_endpoint: str) -> None:
        self._http, self._grpc = http_endpoint, grpc_endpoint
        self.found: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.heard: list[float] = []  # when a stream was cut, time.monotonic() seconds
        self._end = threading.Event()
        self._threads = [threading.Thread(target=self._unary) for _ in range(USERS)]
        self._threads += [threading.Thread(target=self._streams) for _ in range(STREAMS)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join()

    def _unary(self) -> None:
        connection = http.client.HTTPConnection(self._http, timeout=60)
        while not self._end.is_set():
            try:
                connection.request("POST", GENERATE, BODY)
                response = connection.getresponse()
                said = response.read().decode()
                self.found["unary answered" if response.status == 200 else "unary failed"] += 1
                if response.status != 200:
                    self.errors[said] += 1
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                self.found[CUT if isinstance(error, http.client.IncompleteRead) else "unary failed"] += 1
                self.errors[repr(error)] += 1
        connection.close()

    def _streams(self) -> None:
        """One stream after the other; each asks again as soon as it is answered, until it is cut."""
        text = grpcclient.InferInput("text_input", [1, 1], "BYTES")
        text.set_data_from_numpy(np.array([[b"hello"]], dtype=np.object_))
        while not self._end.is_set():
            answered, cut = threading.Semaphore(0), threading.Event()

            def arrived(result: Any, error: Any, cut: threading.Event = cut, more: Any = answered) -> None:
                if error is not None:
                    self.heard.append(time.monotonic())
                    cut.set()
                more.release()

            options = [("grpc.use_local_subchannel_pool", 1)]
            with grpcclient.InferenceServerClient(self._grpc, channel_args=options) as client:
                client.start_stream(callback=arrived)
                while not self._end.is_set() and not cut.is_set():
                    try:
                        client.async_stream_infer("echo", [text])
                    except Exception:  # the client's library says in no other way that the stream is over
                        cut.set()
                        break
                    answered.acquire(timeout=60)
                    self.found["answers on streams"] += not cut.is_set()
                self.found["streams cut"] += cut.is_set()
                client.stop_stream(cancel_requests=True)


def run(count: int) -> dict[str, Any]:
    """What became of every request, and how late a cut stream heard of it; anything lost or left is an error."""
    with tempfile.TemporaryDirectory(prefix="labs-replicas-") as folder:
        workspace = checkout(Path(folder))
        labctl(workspace.root, "up", STACK, "--runtime", "local", "--ports", "auto", "--replicas", "2")
        record = LocalRuntime(workspace).find(STACK)
        assert record
        load = Load(record.endpoints.http, record.endpoints.grpc)
        late = []
        try:
            for number in range(count):
                time.sleep(0.3)
                before = len(load.heard)
                killed = time.monotonic()
                servers_of(workspace.root, STACK)[number % 2 + 1].send_signal(signal.SIGKILL)
                labctl(workspace.root, "restart", STACK)
                late += [at - killed for at in load.heard[before:]]
                if (number + 1) % 10 == 0:
                    print(f"{number + 1} kills; {dict(load.found)} {dict(load.errors)}", flush=True)
        finally:
            load.stop()
            labctl(workspace.root, "down", STACK)
        if remains := left(workspace):
            raise RuntimeError(f"left behind: {', '.join(remains)}")
    found, slowest = load.found, max(late, default=0.0)
    print(
        format_table(
            [("replicas killed", count), *((what, found[what]) for what in WHAT), ("left behind", 0)],
            ("", "number"),
            right=[1],
        )
    )
    lost = found["unary failed"]
    print(
        f"{'not met' if lost else 'met'}: no unary request failed unanswered; "
        f"a cut stream heard of it after {slowest:.2f} s at the latest"
    )
    if lost:
        raise RuntimeError(f"unary requests were lost: {dict(load.errors)}")
    return {"count": count, "found": dict(found), "slowest_cut_s": slowest, "left": 0}
