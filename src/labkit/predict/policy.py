"""A policy's process, as the referee speaks with it: questions out, answers in, and what ends it."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from labkit.predict import player as script

PATIENCE_S = 10.0  # for one answer
LOOK_S = 0.1


class Foul(Exception):
    """Why a policy is disqualified: a word for it, and a sentence."""

    def __init__(self, word: str, why: str) -> None:
        super().__init__(why)
        self.word = word


class Player:
    """The policy's process, run by ``python``. Closed by ``with``."""

    def __init__(self, path: Path, python: str = sys.executable) -> None:
        command = [python, "-I", str(Path(script.__file__)), str(path)]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={},
            start_new_session=True,  # processes that the policy starts while it is loaded end with it
        )
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        self._failed = False
        self.seconds = 0.0  # of processor time, by its own clock
        try:
            self.answers: list[str] = self._reply().get("answers", [])
        except Foul:
            self.close()
            raise

    def _listen(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def __enter__(self) -> Player:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def alive(self) -> bool:
        """Whether it can play on: after a crash, or no answer, it cannot."""
        return not self._failed

    def close(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)  # it leads its group, and is not reaped yet
        self._process.kill()
        self._process.wait()
        self._listener.join()
        assert self._process.stdin and self._process.stdout
        with suppress(BrokenPipeError):  # a question that it did not read
            self._process.stdin.close()
        self._process.stdout.close()

    def _line(self) -> str:
        """The next line; "" if the process has ended, even if one that it started keeps its end of the pipe."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            with suppress(queue.Empty):
                return self._lines.get(timeout=LOOK_S)
            if os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                with suppress(queue.Empty):
                    return self._lines.get(timeout=LOOK_S)
                return ""
        raise Foul("hangs", f"no answer within {PATIENCE_S:g} s")

    def ask(self, question: str, view: Mapping[str, Any]) -> Any:
        """Its answer. Raises Foul if it gives none."""
        assert self._process.stdin
        try:
            self._process.stdin.write(json.dumps({"ask": question, "view": view}) + "\n")
            self._process.stdin.flush()
        except OSError:
            raise Foul("crashed", "its process has ended") from None
        reply = self._reply()
        self.seconds += float(reply.get("seconds", 0.0))
        return reply.get("answer")

    def _reply(self) -> dict[str, Any]:
        if self._failed:
            raise Foul("crashed", "it has failed before")
        self._failed = True  # unless its reply is an answer
        line = self._line()
        try:
            reply = json.loads(line)
        except ValueError:
            reply = None
        if not isinstance(reply, dict):
            raise Foul("crashed", "its process has ended")
        if "error" in reply:
            raise Foul("crashed", f"line {reply.get('line', 0)}: {reply['error']}")
        self._failed = False
        return reply
