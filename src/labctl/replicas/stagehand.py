"""Acts on a phase's stack while its client runs: the client asks, and labctl carries them out.

A client lives where it cannot kill or start a server, or stop a clock (a container), and times what it sees. So it
writes what it asks into the results folder (``labkit.client.context``), and is answered there. It is done to its stack
alone.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Executor, Future, wait
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from labctl.clock import Clock
from labctl.listener import Silent
from labctl.replicas import restart
from labctl.replicas.scale import Scaler, autoscale, scale
from labctl.runtimes.compose_project import client_endpoints
from labctl.stack import replicas
from labctl.stack.stack import RunningStack
from labkit.client.context import REQUEST_FILES, answer_of, folder_of
from labkit.disk import atomic_write
from labkit.errors import LabError
from labkit.waiting import attempts

ACTS = ("kill", "restart", "roll", "scale", "follow", "pause", "run")
LOOK_S = 0.05
DRAIN_S = 20.0
THERE_S = 120.0  # requests that were sent are in the engine by then, on however busy a machine
END_S = 60.0  # an act that is under way when the client has ended is waited for as long


class _Over(Exception):
    """The client has ended, or the time that it asked for is over."""


class _Until(Silent):
    """Ends an act at its next step, because its client has ended or its time is over."""

    def __init__(self, over: threading.Event) -> None:
        self._over = over

    def step(self, text: str) -> None:
        if self._over.is_set():
            raise _Over

    progress = step


class Stagehand:
    """Use as a context manager around one client.

    ``hands``: two threads that live as long as the servers do. A server that must not outlive labctl is ended by the
    kernel with the *thread* that started it (prctl(2), PR_SET_PDEATHSIG).
    """

    def __init__(self, hands: Executor, stack: RunningStack, phase: str, out: Path) -> None:
        self._over = threading.Event()
        self._session = replace(stack.session, listener=_Until(self._over))
        self._stack, self._hands = stack, hands
        self._folder = folder_of(out, phase)
        self._busy: list[Future[None]] = []

    def __enter__(self) -> Self:
        self._busy.append(self._hands.submit(self._look))
        return self

    def __exit__(self, *raised: object) -> None:
        self._over.set()
        wait(self._busy[:1], END_S)  # the one that looks adds others
        wait(self._busy, END_S)
        if self._clock().paused:  # leave no clock stopped
            self._clock().run()

    # -- what a client may ask for, by the name of the act -----------------------------------------------------------

    def kill(self, replica: int = 1) -> str:
        """Raises LabError: there is no such replica. A stack without replicas is its own replica 1."""
        up = RunningStack.require_up(self._session, self._stack.name)
        up.record.only(replica)
        number = up.record.folder(replica)
        up.runtime.stop(self._session.listener, self._stack.name, force=True, number=number)
        return f"replica {replica} was killed" if number else "the server was killed"

    def restart(self) -> str:
        restart.restart(self._session, self._stack.lab, self._stack.name)
        return "what had died was started again"

    def roll(self) -> str:
        restart.rolling(self._session, self._stack.lab, self._stack.name, DRAIN_S)
        return "every replica was restarted, one after the other"

    def scale(self, count: int) -> str:
        record = scale(self._session, self._stack.lab, self._stack.name, count, DRAIN_S)
        return replicas.replicas_in_words(len(record.servers))

    def pause(self) -> str:
        self._clock().pause()
        return "no scheduler begins a step"

    def run(self, model: str, requests: int) -> str:
        """Let the schedulers run again, once this model's scheduler has that many requests."""
        clock = self._clock()
        for _ in attempts(THERE_S, LOOK_S):
            if (held := clock.held_requests(model)) >= requests:
                clock.run()
                return f"{requests} requests waited for the first step"
            if self._over.is_set():
                raise _Over
        raise LabError(
            f"{held} of {requests} requests are in {model}",
            f"within {THERE_S:g} s; those that wait in Triton's queue are not in the model",
            code="requests-missing",
        )

    def _clock(self) -> Clock:
        return Clock(self._stack.folder.run_dir(), tuple(self._stack.record.models))

    def follow(self, least: int, most: int, target: float, settle: float, seconds: float) -> list[dict[str, Any]]:
        """Each decision of the loop, with the moment (``time.monotonic``) at which it was made.

        Args:
            settle: seconds for which it goes on when its first decision has been carried out.
            seconds: how long it goes on without one.
        """
        until = time.monotonic() + seconds
        decisions: list[dict[str, Any]] = []

        def pause(seconds: float) -> None:
            nonlocal until
            if decisions and "done" not in decisions[0]:
                decisions[0]["done"] = time.monotonic()
                until = decisions[0]["done"] + settle
            if self._over.wait(seconds) or time.monotonic() > until:
                raise _Over

        with contextlib.suppress(_Over):
            for line in autoscale(self._session, self._stack.lab, self._stack.name, Scaler(least, most, target), pause):
                decisions.append({"decided": time.monotonic(), "text": line})
        return decisions

    # ----------------------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Acts are carried out one by one, in their order; the loop that follows what waits runs beside the others."""
        done: set[Path] = set()
        while not self._over.wait(LOOK_S):
            for path in sorted(set(self._folder.glob(REQUEST_FILES)) - done):
                done.add(path)
                request = json.loads(path.read_text(encoding="utf-8"))
                if request.get("act") == "follow":
                    self._busy.append(self._hands.submit(self._answer, path, request))
                else:
                    self._answer(path, request)

    def _answer(self, path: Path, request: Mapping[str, Any]) -> None:
        began = time.monotonic()
        try:
            answer = {"outcome": self._carry_out(**request)}
            up = RunningStack.find(self._session, self._stack.name)
            answer["replicas"] = replica_endpoints(up) if up else {}
        except _Over:
            return  # the client no longer waits for the answer
        except LabError as error:
            answer = {"error": error.to_json()}
        except Exception as error:  # else the client would wait for ever
            answer = {"error": LabError(f"{request.get('act')} failed", repr(error), code="act-failed").to_json()}
        answer |= {"began": began, "ended": time.monotonic()}
        atomic_write(answer_of(path), json.dumps(answer))

    def _carry_out(self, act: str, **arguments: Any) -> Any:
        if act not in ACTS:
            raise LabError(f"labctl has no act {act}", f"it has: {', '.join(ACTS)}", code="act-unknown")
        method = getattr(self, act)
        try:
            inspect.signature(method).bind(**arguments)
        except TypeError as error:
            takes = ", ".join(inspect.signature(method).parameters) or "none"
            raise LabError(f"{act} failed", f"{error}; it takes: {takes}", code="act-failed") from error
        outcome = method(**arguments)
        if act in ("pause", "run"):
            return outcome
        sentences = [outcome] if isinstance(outcome, str) else [decision["text"] for decision in outcome]
        for sentence in sentences:
            self._stack.session.listener.note(sentence)
        return outcome


def replica_endpoints(stack: RunningStack) -> dict[str, dict[str, str]]:
    """Where a client reaches each server of a stack, by number; {} for a stack that is one server."""
    record = stack.record
    if not record.balance:
        return {}
    numbers = [server.number for server in record.servers]
    return {str(number): vars(client_endpoints(record.only(number))) for number in numbers}
