"""The library of a museum exhibit's ``reproduce.py``: the server as a client sees it, bursts, streams, counters.

An exhibit's verdict must not depend on how fast the machine is. So counters and states are waited for with a deadline
(:meth:`ExhibitServer.wait`), and "never answered" is claimed only of a server that kept answering other questions
meanwhile (:meth:`ExhibitServer.holds`).
"""

from __future__ import annotations

import contextlib
import http.client
import json
import queue
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tritonclient.grpc as triton

from labkit.clients.base import connect
from labkit.evidence.metrics import ModelCounters, scrape
from labkit.fetch import fetch
from labkit.waiting import attempts

PATIENCE_S = 60.0  # for whatever a healthy server does at once, on a machine that is busy with other work
POLL_S = 0.02
ASK_EVERY_S = 0.1  # between two questions that show that a silent server is alive


class CannotTell(Exception):
    """The run gave no evidence for either verdict; the text says what was missing."""


@dataclass(frozen=True)
class Observation:
    """The result of a run: whether the symptom was there, and the figures by which that was judged."""

    symptom: bool
    measured: str


@dataclass
class ExhibitAnswer:
    """One request's outcome: the first number of its output ``Y`` (0.0 if it has none), or the error's text."""

    done: threading.Event = field(default_factory=threading.Event)
    value: float = 0.0
    error: str = ""
    cancel: Callable[[], object] = lambda: None

    def take(self, result: Any, error: object) -> None:
        """Callback of an asynchronous call."""
        if error is None and (output := result.as_numpy("Y")) is not None:
            self.value = float(output.reshape(-1)[0])
        self.error = str(error or "")
        self.done.set()

    @property
    def ok(self) -> bool:
        return self.done.is_set() and not self.error


class Stream:
    """One gRPC stream. ``messages`` holds what came back so far: a value, an error's text, or FINAL."""

    FINAL = "final"

    def __init__(self, client: triton.InferenceServerClient) -> None:
        self._client, self._queue = client, queue.SimpleQueue[Any]()
        self.messages: list[float | str] = []
        client.start_stream(callback=lambda result, error: self._queue.put((result, error)))

    def stop(self) -> None:
        """Cancel what is under way. In the background: closing waits for answers, which may never come."""
        threading.Thread(target=self._client.stop_stream, kwargs={"cancel_requests": True}, daemon=True).start()

    def send(self, model: str, value: float = 0.0, **options: Any) -> None:
        self._client.async_stream_infer(model, [number_input(value)], enable_empty_final_response=True, **options)

    def read(self) -> list[float | str]:
        """All messages so far."""
        with contextlib.suppress(queue.Empty):
            while True:
                result, error = self._queue.get_nowait()
                if error is not None:
                    self.messages.append(str(error))
                    continue
                if (output := result.as_numpy("Y")) is not None:
                    self.messages.append(float(output.reshape(-1)[0]))
                mark = result.get_response().parameters.get("triton_final_response")
                if mark is not None and mark.bool_param:
                    self.messages.append(self.FINAL)
        return self.messages

    def ended(self, count: int = 1) -> bool:
        """Whether at least ``count`` requests have ended, with a final answer or an error."""
        return sum(message == self.FINAL or isinstance(message, str) for message in self.read()) >= count


@dataclass(frozen=True)
class ExhibitServer:
    """A server of the exhibit's own.

    Attributes:
        http, grpc, metrics: its endpoints, ``host:port``.
        workaround: whether it runs with the exhibit's work-around (a client's work-around looks here).
        log: returns its log so far.
        ended: returns how it ended ("killed by SIGFPE"), "" while it runs.
    """

    http: str
    grpc: str
    metrics: str
    workaround: bool
    log: Callable[[], str]
    ended: Callable[[], str]
    _clients: list[triton.InferenceServerClient] = field(default_factory=list)

    # -- requests -------------------------------------------------------------------------------------------------

    def client(self) -> triton.InferenceServerClient:
        """The gRPC client that all requests share."""
        if not self._clients:
            self._clients.append(connect(self.grpc))
        return self._clients[0]

    def send(self, model: str, value: float = 0.0, **options: Any) -> ExhibitAnswer:
        """Send one request (input ``X``, one FP32 number) and return at once."""
        answer = ExhibitAnswer()
        answer.cancel = self.client().async_infer(model, [number_input(value)], callback=answer.take, **options).cancel
        return answer

    def infer(self, model: str, value: float = 0.0, **options: Any) -> ExhibitAnswer:
        """Send one request and wait for its answer or error. Raises CannotTell after PATIENCE_S."""
        answer = self.send(model, value, **options)
        self.wait(answer.done.is_set, f"{model} answers")
        return answer

    def burst(self, model: str, values: Sequence[float], **options: Any) -> list[ExhibitAnswer]:
        """Send many requests at once and wait for all."""
        answers = [self.send(model, value, **options) for value in values]
        self.wait(lambda: all(answer.done.is_set() for answer in answers), f"{model} answers {len(answers)} requests")
        return answers

    @contextlib.contextmanager
    def stream(self) -> Iterator[Stream]:
        stream = Stream(connect(self.grpc))
        try:
            yield stream
        finally:
            stream.stop()

    def call(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> tuple[int, str]:
        """One HTTP request: status and text. Status 0: the connection ended without an answer; the text says how."""
        payload = json.dumps(body).encode() if isinstance(body, dict) else body
        try:
            status, text = fetch(self.http, method, path, payload, headers, timeout=PATIENCE_S)
            return status, text.decode(errors="replace")
        except (OSError, http.client.HTTPException) as error:
            return 0, str(error) or type(error).__name__

    def state(self, model: str) -> str:
        """A model's state in the repository index: READY, LOADING, UNLOADING, UNAVAILABLE or ""."""
        rows = json.loads(self.call("POST", "/v2/repository/index", {})[1])
        return next((row.get("state", "") for row in rows if row["name"] == model), "")

    # -- evidence -------------------------------------------------------------------------------------------------

    def counters(self, model: str) -> ModelCounters:
        """A model's counters from /metrics. Triton counts a request after it has answered it: wait for them."""
        return scrape(self.metrics).models.get(model, ModelCounters())

    def logged(self, pattern: str) -> list[str]:
        """All matches of a pattern in the log."""
        return re.findall(pattern, self.log())

    def memory(self) -> int:
        """The server's resident memory in bytes, which the model ``memory`` of the exhibit reports in MiB."""
        return int(self.infer("memory").value * 2**20)

    # -- waiting --------------------------------------------------------------------------------------------------

    def wait(self, check: Callable[[], Any], what: str, seconds: float = PATIENCE_S) -> Any:
        """The first true value of a check. Raises CannotTell at the deadline, or when the server ends."""
        for _ in attempts(seconds, POLL_S):
            if value := check():
                return value
            if how := self.ended():
                raise CannotTell(f"the server ended ({how}) before {what}")
        raise CannotTell(f"waited {seconds:g} s in vain: {what}")

    def wait_dead(self, seconds: float) -> str:
        """How the server ended; "" if it still answers after ``seconds``."""
        return "" if self.holds(lambda: not self.ended(), seconds) else self.ended()

    def holds(self, condition: Callable[[], Any], seconds: float) -> bool:
        """Whether a condition holds for ``seconds`` in which the server goes on answering other questions.

        Counted are answered health requests, one each 0.1 s: on a busy machine it takes longer. False as soon as the
        condition no longer holds. Raises CannotTell if a living server does not answer the health requests.
        """
        for _ in range(round(seconds / ASK_EVERY_S)):
            time.sleep(ASK_EVERY_S)
            if not condition():
                return False
            self.wait(lambda: not condition() or self.call("GET", "/v2/health/live")[0] == 200, "the server is live")
        return bool(condition())


def number_input(value: float) -> triton.InferInput:
    """The input ``X``: FP32, shape (1, 1)."""
    tensor = triton.InferInput("X", (1, 1), "FP32")
    tensor.set_data_from_numpy(np.full((1, 1), value, np.float32))
    return tensor
