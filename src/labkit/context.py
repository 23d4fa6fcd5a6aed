"""The context of a lab's client (the stack's endpoints, the settings), and the results that it leaves."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labkit import results
from labkit.clients.base import grpc_server_version
from labkit.disk import atomic_write
from labkit.evidence import steplog
from labkit.records import RequestRecord
from labkit.stage import RequestedAct, request_act
from labsched.steplog import StepRecord


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
    tokenizer_dir: str
    replicas: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # by number, where there is a balancer
    # Seconds; a server that was up before has older steps. It is not in the file: a client begins by itself.
    began: float = field(default_factory=time.monotonic)

    def write(self, path: Path) -> None:
        """Write the file that :func:`load_context` reads."""
        document = {name: value for name, value in vars(self).items() if name != "began"}
        atomic_write(path, json.dumps(document, indent=1, default=str))

    def steps(self, model: str, records: Sequence[RequestRecord] = ()) -> list[StepRecord]:
        """The steps of ``model`` since the first of ``records`` was sent, or since this client began."""
        since = min((record.start for record in records), default=self.began)
        return steplog.read_step_log(self.run_dir, model, since=since)

    def act(self, act: str, **arguments: Any) -> RequestedAct:
        """Have labctl do something to the replicas, one of the phase's ``acts``; returns at once."""
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
