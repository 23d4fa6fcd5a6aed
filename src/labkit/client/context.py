"""The context of a lab's client: its stack's endpoints, the settings, acts on the stack, and the results it leaves.

For an act (kill, restart or scale replicas, set the clock) the client writes a request into a folder of its results.
labctl (``replicas.stagehand``) watches it, and writes the answer beside it. Both stay there as a record.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labkit.client.ask import grpc_server_version
from labkit.disk import atomic_write
from labkit.errors import LabError
from labkit.evidence import results, steplog
from labkit.evidence.records import RequestRecord
from labkit.waiting import attempts
from labsched.step import Step

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

    def __init__(self, path: Path, act: str) -> None:
        self._answer, self._act = answer_of(path), act

    @property
    def over(self) -> bool:
        """Whether it has been carried out, or has failed."""
        return self._answer.exists()

    def done(self, timeout: float = 180.0) -> Done:
        """Wait for it. Raises LabError if it failed, or takes longer than ``timeout`` seconds."""
        if not any(self.over for _ in attempts(timeout, LOOK_S)):
            raise LabError(
                f"labctl has not done {self._act} within {timeout:g} s",
                f"asked in {self._answer.parent}",
                code="stage-silent",
            )
        answer = json.loads(self._answer.read_text(encoding="utf-8"))
        if error := answer.pop("error", None):
            raise LabError.from_json(error)
        return Done(**answer)


def request_act(out: Path, phase: str, act: str, **arguments: Any) -> RequestedAct:
    """Ask labctl for an act, a method of ``labctl.replicas.stagehand.Stagehand``, with its arguments."""
    folder = folder_of(out, phase)
    folder.mkdir(exist_ok=True)
    path = folder / f"{len(list(folder.glob(REQUEST_FILES))) + 1:02}.json"
    atomic_write(path, json.dumps({"act": act, **arguments}))
    return RequestedAct(path, act)


def folder_of(out: Path, phase: str) -> Path:
    return out / f"acts-{phase}"


def answer_of(path: Path) -> Path:
    return path.with_suffix(".done.json")


@dataclass(frozen=True)
class Context:
    """The content of ``context-<phase>.json``: ``labctl run`` writes it, the client of the phase loads it.

    Paths are as the client sees them.
    """

    lab: str
    stack: str
    phase: str
    profile: str
    runtime: str
    endpoints: Mapping[str, str]
    settings: Mapping[str, Any]
    quick: bool
    out: Path
    run_dir: Path
    tokenizer_dir: str | None
    replicas: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # by number, where there is a balancer
    # Seconds; a server that was up before has older steps. It is not in the file: a client begins by itself.
    began: float = field(default_factory=time.monotonic)

    def write(self, path: Path) -> None:
        """Write the file that :func:`load_context` reads."""
        document = {name: value for name, value in vars(self).items() if name != "began"}
        atomic_write(path, json.dumps(document, indent=1, default=str))

    def steps(self, model: str, records: Sequence[RequestRecord] = ()) -> list[Step]:
        """The steps of ``model`` since the first of ``records`` was sent, or since this client began."""
        since = min((record.start for record in records), default=self.began)
        return steplog.read_step_log(self.run_dir, model, since=since)

    def act(self, act: str, **arguments: Any) -> RequestedAct:
        """Have labctl do something to the stack (docs/develop/writing-a-lab.md lists what); returns at once."""
        return request_act(self.out, self.phase, act, **arguments)

    def finish(self, data: Mapping[str, Any], records: Sequence[RequestRecord]) -> None:
        """Write the phase's numbers, every request that counts, and the step log of the time, warm-up marked."""
        document = {"triton": grpc_server_version(self.endpoints["grpc"]), **data}
        results.write_phase(self.out, self.phase, document, records)
        steplog.keep_step_log(self.run_dir, self.out / f"steps-{self.phase}.jsonl", self.began, records)


def load_context(path: str) -> Context:
    """Read a context file."""
    data = json.loads(Path(path).read_text(encoding="utf-8"))
    return Context(**{**data, "out": Path(data["out"]), "run_dir": Path(data["run_dir"])})
