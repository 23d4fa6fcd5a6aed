"""Sends recorded requests to a running server again, at their recorded times."""

from __future__ import annotations

import itertools
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from labctl.clock import PATIENCE_S
from labctl.lab import Lab
from labctl.labs.run import results_folder
from labctl.labs.servers import ephemeral_stack
from labctl.options import Options
from labctl.settings import format_setting, holds
from labctl.stack.session import Session
from labkit.client import load
from labkit.client.trtllm import EngineStream
from labkit.errors import LabError
from labkit.evidence import results, steplog
from labkit.evidence.records import RequestRecord
from labkit.waiting import attempts
from labsched.log.lines import RECORD
from labsched.replay.player import Tokens
from labsched.replay.recording import Arrival, Recording, read_recording

LOOK_S = 0.005
PHASE = "rerun"
WARM_UP = 4  # requests
STACKS = {"V1": "static-batching", "inflight_fused_batching": "inflight-batching"}
OWN = ("gpt_model_type", "decoupled_mode")  # what `run` itself decides
LEAST_ID, MULTIPLIER = 5, 2_654_435_761  # ids below stand for special tokens; the other spreads ids (Knuth)


def prompts(arrivals: Sequence[Arrival], vocabulary: int) -> list[list[int]]:
    """Token ids of the model's vocabulary for recorded prompts: equal where the prompts were."""
    tokens = Tokens()
    return [
        [LEAST_ID + node * MULTIPLIER % (vocabulary - LEAST_ID) for node in tokens.of(arrival, arrival.prompt)]
        for arrival in arrivals
    ]


def as_sent(arrivals: Sequence[Arrival]) -> list[Arrival]:
    """The requests as they can be sent again: an answer that stopped early gets its length as its limit."""
    answered = [arrival for arrival in arrivals if arrival.made]
    return [
        replace(arrival, limit=arrival.made, why="length", left=0, word=False, resumable=True) for arrival in answered
    ]


def send_on_time(
    endpoint: str, arrivals: Sequence[Arrival], vocabulary: int, in_flight: int | None, timeout: float
) -> list[RequestRecord]:
    """Send the requests at their recorded times, or ``in_flight`` at a time, and wait for their answers.

    A load that followed another one follows it again, after the same pause.
    """
    ids = prompts(arrivals, vocabulary)

    def ask(stream: EngineStream, number: int) -> RequestRecord:
        return send_recorded(stream, arrivals[number], ids[number])

    def ask_at(stream: EngineStream, begin: int, number: int) -> RequestRecord:
        return ask(stream, begin + number)

    def silent(answered: int, count: int) -> None: ...

    if in_flight:
        return load.closed_loop(endpoint, in_flight, len(arrivals), ask, timeout, silent, EngineStream)
    with EngineStream(endpoint) as stream:
        records: list[RequestRecord] = []
        begins = [0, *(number for number, arrival in enumerate(arrivals) if arrival.follows), len(arrivals)]
        for begin, end in itertools.pairwise(begins):
            over = max((arrival.left_at for arrival in arrivals[:begin]), default=0.0)
            times = [arrival.at - over for arrival in arrivals[begin:end]]
            sent = load.open_loop(times, partial(ask_at, stream, begin), silent)
            stream.wait(*sent, timeout=timeout)
            records += sent
    return records


def send_recorded(stream: EngineStream, arrival: Arrival, ids: Sequence[int]) -> RequestRecord:
    """Send one request with its recorded tenant and priority."""
    tenant = {} if arrival.tenant is None else {"tenant": arrival.tenant}
    return stream.ask(ids, arrival.limit, request_priority=arrival.priority, **tenant)


def log_of(run_dir: Path, file: Path, since: float, records: Sequence[RequestRecord]) -> Path:
    """Keep the step log of ``records`` in ``file``, once it has the record of each; ``since``: monotonic seconds."""
    names = {record.id for record in records}
    for _ in attempts(PATIENCE_S, LOOK_S):
        steplog.keep_step_log(run_dir, file, since, records)
        text = file.read_text(encoding="utf-8")
        if all(f'"kind":"request","name":"{name}"' in text for name in names):
            return file
    raise LabError(
        "the step log lacks requests that were answered",
        f"within {PATIENCE_S:g} s",
        "labctl logs STACK",
        code="step-log-incomplete",
    )


@dataclass(frozen=True)
class Rerun:
    """What was sent, as a recording to predict from; what was measured; and where its step log is.

    ``left_out``: the recorded settings that the stack does not have.
    """

    sent: Recording
    measured: Recording
    folder: Path
    left_out: Sequence[str] = ()


@dataclass(frozen=True)
class Recorded:
    """How the server of a recording was brought up."""

    stack: str
    profile: str
    runtime: str
    settings: Mapping[str, str]

    @classmethod
    def of(cls, recording: Recording) -> Recorded:
        """Raises LabError: the recording does not say it."""
        source = Path(recording.source)
        phase = source.name.removeprefix("steps-").removesuffix(".jsonl")
        try:
            context = results.context_of(source.parent, phase)
            stack, profile, runtime = (str(context[key]) for key in ("stack", "profile", "runtime"))
            settings = {name: format_setting(value) for name, value in context["settings"].items()}
        except (OSError, ValueError, LookupError, AttributeError) as error:
            raise LabError(
                f"{source} does not say how its server was set",
                f"context-{phase}.json: {error}",
                "predict without --run, or from a result of labctl run or bench",
                code="server-settings-unknown",
            ) from error
        return cls(stack, profile, runtime, settings)

    def carried(self, lab: Lab, assignments: Mapping[str, str]) -> dict[str, str]:
        """Every recorded setting that a stack of ``lab`` has and that means something beside ``assignments``."""
        served = {key for key, setting in lab.declared.items() if not setting.of_run} - {*OWN}
        kept = {name: value for name, value in self.settings.items() if name in served and value}
        together = {**kept, **assignments}
        return {name: value for name, value in kept.items() if holds(lab.declared[name], together, self.profile)}

    def command(self, session: Session, assignments: Mapping[str, str], *words: str) -> str:
        """The ``labctl bench`` that records such a server again with these settings, as a line for a terminal."""
        lab, stack = session.catalog.stack(self.stack)
        usual = {key: setting.default[self.profile] for key, setting in lab.declared.items()}
        usual |= lab.stacks[stack].settings
        carried = self.carried(lab, assignments)
        settings = {name: value for name, value in carried.items() if format_setting(usual[name]) != value}
        settings |= assignments
        profile = [] if self.profile == "cpu" else ["--profile", self.profile]
        pairs = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
        return shlex.join(["labctl", "bench", stack, *profile, *pairs, *words])


def rerun_recording(
    session: Session, recording: Recording, assignments: Mapping[str, str], in_flight: int | None
) -> Rerun:
    """Bring up the recording's stack with other settings, send its requests again, and take the stack down.

    Raises LabError: the recording does not say which stack it is of, or a request failed.
    """
    recorded = Recorded.of(recording)
    batching = assignments.get("gpt_model_type")
    lab, stack = session.catalog.stack(STACKS[batching] if batching else recorded.stack)
    changed = {name: value for name, value in assignments.items() if name not in OWN}
    settings = {**recorded.carried(lab, changed), **changed, "decoupled_mode": "true"}
    left_out = sorted(name for name, value in recorded.settings.items() if value and name not in lab.declared)
    sent = [replace(a, name=str(number)) for number, a in enumerate(as_sent(recording.arrivals), 1)]
    if not sent:
        raise LabError(
            f"{recording.source} has no request that can be sent again",
            "none had an answer",
            RECORD,
            code="recording-unsendable",
        )
    options = Options(recorded.profile, settings, runtime=recorded.runtime, ports="auto")
    with results_folder(session, lab) as out, ephemeral_stack(session, lab, stack, options) as up:
        endpoint, run_dir = up.record.scrape_endpoints["grpc"], session.workspace.folder(stack).run_dir()
        warm_up = [replace(a, prefixes=b"") for a in sent[:WARM_UP]]  # no other request finds their prompts in a cache
        send_on_time(endpoint, warm_up, recording.settings.vocabulary, None, PATIENCE_S)
        began = time.monotonic()
        records = send_on_time(endpoint, sent, recording.settings.vocabulary, in_flight, 10 * PATIENCE_S)
        file = log_of(run_dir, out / f"steps-{PHASE}.jsonl", began, records)
    measured = read_recording(file).since_sent({record.id: record.start for record in records}).numbered()
    at = {a.name: a.at for a in measured.arrivals}
    arrivals = [replace(a, at=at[a.name]) for a in sent]
    return Rerun(replace(recording, arrivals=arrivals, steps=[], way=measured.way), measured, out, left_out)
