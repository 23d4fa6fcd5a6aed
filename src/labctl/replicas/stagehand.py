"""What happens to a phase's replicas while its client runs: the client asks, and labctl does it.

A client lives where it cannot kill or start a server (a container), and times what it sees by its own clock. So it
writes what it asks into the results folder (``labkit.stage``), and is answered there. Only what the phase's
``acts`` name is done, and only to the phase's own stack.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Executor, Future, wait
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from labctl.listener import Silent
from labctl.manifest.schema import Lab, Phase
from labctl.replicas import restart
from labctl.replicas.scale import Scaler, follow, scale
from labctl.runtimes.base import Runtime
from labctl.runtimes.record import Record
from labctl.stack import replicas
from labctl.stack.session import Session
from labkit.disk import atomic_write
from labkit.errors import LabError
from labkit.stage import ASKED, answer_of, folder_of

LOOK_S = 0.05
DRAIN_S = 20.0
END_S = 60.0  # an act that is under way when the client has ended is waited for as long


class _Over(Exception):
    """The client has ended, or the time that it asked for is over."""


class _Until(Silent):
    """Ends what is under way at its next step, for whoever asked for it has ended."""

    def __init__(self, over: threading.Event) -> None:
        self._over = over

    def step(self, text: str) -> None:
        if self._over.is_set():
            raise _Over

    progress = step


@dataclass(frozen=True)
class Stage:
    """The replicas that the acts are about."""

    session: Session
    lab: Lab
    stack: str
    over: threading.Event

    def kill(self, replica: int) -> str:
        runtime, _ = self.session.require_up(self.stack)
        runtime.stop(self.stack, force=True, number=replica).do(self.session.listener)
        return f"replica {replica} was killed"

    def restart(self) -> str:
        restart.restart(self.session, self.lab, self.stack)
        return "what had died was started again"

    def roll(self) -> str:
        restart.rolling(self.session, self.lab, self.stack, DRAIN_S)
        return "every replica was restarted, one after the other"

    def scale(self, count: int) -> str:
        record = scale(self.session, self.lab, self.stack, count, DRAIN_S)
        return replicas.counted(len(record.servers))

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
            if self.over.wait(seconds) or time.monotonic() > until:
                raise _Over

        lines = follow(self.session, self.lab, self.stack, Scaler(least, most, target), pause)
        try:
            for line in lines:
                decisions.append({"decided": time.monotonic(), "text": line})
        except _Over:
            pass
        return decisions


class Stagehand:
    """Use as a context manager around the client of one phase.

    ``hands``: two threads that live as long as the servers do. A server that must not outlive labctl is ended by
    the kernel with the *thread* that started it (prctl(2), PR_SET_PDEATHSIG).
    """

    def __init__(
        self, hands: Executor, session: Session, lab: Lab, phase: Phase, runtime: Runtime, stack: str, out: Path
    ) -> None:
        self._over = threading.Event()
        quiet = replace(session, listener=_Until(self._over))
        self._stage = Stage(quiet, lab, stack, self._over)
        self._session, self._phase, self._runtime = session, phase, runtime
        self._folder = folder_of(out, phase.name)
        self._hands = hands
        self._busy: list[Future[None]] = []

    def __enter__(self) -> Self:
        if self._phase.acts:
            self._folder.mkdir()
            self._busy.append(self._hands.submit(self._look))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        wait(self._busy, END_S)

    def _look(self) -> None:
        """Acts are carried out one by one, in their order; the loop that follows what waits runs beside the others."""
        done: set[Path] = set()
        while not self._over.wait(LOOK_S):
            for path in sorted(set(self._folder.glob(ASKED)) - done):
                done.add(path)
                asked = json.loads(path.read_text(encoding="utf-8"))
                if asked.get("act") == "follow":
                    self._busy.append(self._hands.submit(self._answer, path, asked))
                else:
                    self._answer(path, asked)

    def _answer(self, path: Path, asked: Mapping[str, Any]) -> None:
        began = time.monotonic()
        try:
            answer = {"outcome": self._carry_out(**asked)}
        except _Over:
            return  # nobody waits for the answer
        except LabError as error:
            answer = {"error": error.to_json()}
        except Exception as error:  # whoever waits for the answer must not wait for ever
            answer = {"error": LabError(f"{asked.get('act')} failed", repr(error)).to_json()}
        answer |= {"began": began, "ended": time.monotonic(), "replicas": self._replicas()}
        atomic_write(answer_of(path), json.dumps(answer))

    def _carry_out(self, act: str, **arguments: Any) -> Any:
        if act not in self._phase.acts:
            raise LabError(f"phase {self._phase.name} may not ask for {act}", "", "its acts are in lab.yaml")
        outcome = getattr(self._stage, act)(**arguments)
        for text in [outcome] if isinstance(outcome, str) else [each["text"] for each in outcome]:
            self._session.listener.note(text)
        return outcome

    def _replicas(self) -> dict[str, dict[str, str]]:
        found = self._session.find(self._stage.stack)
        return endpoints(self._runtime, found[1]) if found else {}


def endpoints(runtime: Runtime, record: Record) -> dict[str, dict[str, str]]:
    """Where a client reaches each server of a stack, by number; {} for a stack that is one server."""
    if not record.balance:
        return {}
    return {str(one.number): vars(runtime.client_endpoints(record.only(one.number))) for one in record.servers}
