"""Acts that a client requests on its own stack: kill, restart or scale replicas, and set the clock.

The client writes a request into a folder of its results. labctl (``replicas.stagehand``) watches it, and writes
the answer beside it. Requests and answers stay there as a record of the acts and their times.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.disk import atomic_write
from labkit.errors import LabError
from labkit.waiting import attempts

REQUEST_FILES = "[0-9][0-9].json"
LOOK_S = 0.05


@dataclass(frozen=True)
class Done:
    """An act that was carried out.

    Attributes:
        began, ended: time.monotonic() seconds, which client and labctl share.
        outcome: a sentence; for autoscaling, its decisions; for an act on the clock, what the clock returned.
        replicas: the endpoints of each server, by number, as they are now; a server that came back may have moved.
    """

    began: float
    ended: float
    outcome: Any
    replicas: Mapping[str, Mapping[str, str]]


class RequestedAct:
    """An act that labctl was asked for; it happens while the client goes on."""

    def __init__(self, path: Path) -> None:
        self._answer = answer_of(path)

    @property
    def over(self) -> bool:
        """Whether it has been carried out, or has failed."""
        return self._answer.exists()

    def done(self, timeout: float = 120.0) -> Done:
        """Wait for it. Raises LabError if it failed, or takes longer than ``timeout`` seconds."""
        if not any(self.over for _ in attempts(timeout, LOOK_S)):
            raise LabError(
                f"labctl has not answered within {timeout:g} s", f"asked in {self._answer.parent}", code="stage-silent"
            )
        answer = json.loads(self._answer.read_text(encoding="utf-8"))
        if error := answer.pop("error", None):
            raise LabError.from_json(error)
        return Done(**answer)


def request_act(out: Path, phase: str, act: str, **arguments: Any) -> RequestedAct:
    """Ask labctl for an act of ``labctl.manifest.schema.Act``, with its arguments."""
    folder = folder_of(out, phase)
    path = folder / f"{len(list(folder.glob(REQUEST_FILES))) + 1:02}.json"
    atomic_write(path, json.dumps({"act": act, **arguments}))
    return RequestedAct(path)


def folder_of(out: Path, phase: str) -> Path:
    return out / f"acts-{phase}"


def answer_of(path: Path) -> Path:
    return path.with_suffix(".done.json")
