"""Policies of the arena on a real server: each game in virtual time first, then the same requests on Triton."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from labctl import repository
from labctl.clock.clock import PATIENCE_S
from labctl.labs import rerun
from labctl.labs.servers import ephemeral_stack
from labctl.options import Options
from labctl.plan import make_plan
from labctl.stack.session import Session
from labctl.triton import server_api
from labctl.unfinished import replace_dir
from labkit.errors import LabError
from labkit.predict import served
from labkit.predict.field import SERVED
from labkit.predict.policy import Foul, Player
from labkit.predict.referee import Game, Standing, game, most_steps, retime_steps, verdict
from labsched import recording
from labsched.figures import FirstDifference, first_difference
from labsched.lines import MODEL
from labsched.recording import Arrival, StepRow

STACK, HOME = "inflight-batching", "arena"
VOCABULARY, CONTEXT = 3000, 2048  # of random:tiny-llama
IN_FLIGHT = 8  # requests whose answers are asked for at a time
LOAD_S = 120.0
SETTINGS = {
    "model": "random:tiny-llama",
    "exact": "true",
    "decoupled_mode": "true",
    "batch_scheduler_policy": "max_utilization",
    "enable_chunked_context": "true",
    "max_num_sequences": str(SERVED.slots),
    "max_num_tokens": str(SERVED.step_tokens),
    "max_tokens_in_paged_kv_cache": str(SERVED.blocks * SERVED.block_size),
}


Answers = Mapping[str, Sequence[int]]  # token ids, by the request's name


@dataclass
class PolicyResult:
    """A policy in virtual time and on the server. ``partings``: by trace, the first step at which they part, if any."""

    replay: Standing
    server: Standing
    partings: dict[str, FirstDifference | None] = field(default_factory=dict)


def play_policies(
    session: Session,
    policies: Sequence[Path],
    traces: Mapping[str, Sequence[Arrival]],
    tell: Callable[[str, str], object],
) -> list[PolicyResult]:
    """Play every policy on every trace, until it is disqualified. ``tell`` gets the names of both before each game.

    Raises LabError: the server cannot be brought up, or fails for a reason that is no policy's.
    """
    pairs = [PolicyResult(Standing(path.stem, {}), Standing(path.stem, {})) for path in policies]
    for reuse in (False, True):  # of the KV cache, which is a setting of the server
        fitted = {
            name: _fit_to_model(trace)
            for name, trace in traces.items()
            if any(arrival.prefixes for arrival in trace) == reuse
        }
        if not fitted:
            continue
        with _serving(session, reuse) as server:
            answers = {name: server.answers(arrivals) for name, arrivals in fitted.items()}
            for path, pair in zip(policies, pairs, strict=True):
                for name, arrivals in fitted.items():
                    if not (pair.replay.foul or pair.server.foul):
                        tell(path.stem, name)
                        _play_both(server, path, name, arrivals, answers[name], pair)
    return pairs


def policy_result_json(pair: PolicyResult) -> dict[str, Any]:
    """A pair as JSON knows it."""
    document: dict[str, Any] = {"policy": pair.replay.name}
    for name, side in (("replay", pair.replay), ("triton", pair.server)):
        document[name] = {"disqualified": side.foul, "why": side.why, "trace": side.trace, "games": dict(side.games)}
    document["part_at_step"] = {name: parting.step if parting else None for name, parting in pair.partings.items()}
    return document


def _fit_to_model(trace: Sequence[Arrival]) -> list[Arrival]:
    """The requests as the model can take them: with numbers for names, and prompts that leave room for the answer."""
    return [
        replace(arrival, name=str(number), prompt=min(arrival.prompt, CONTEXT - 1 - arrival.limit))
        for number, arrival in enumerate(trace, 1)
    ]


def _play_both(
    server: _Server, path: Path, name: str, arrivals: Sequence[Arrival], answers: Answers, pair: PolicyResult
) -> None:
    try:
        with Player(path) as policy:
            replayed = game(policy, arrivals, SERVED)
    except Foul as foul:
        pair.replay = replace(pair.replay, foul=foul.word, why=str(foul), trace=name)
        return
    pair.replay = replace(pair.replay, games={**pair.replay.games, name: replayed.figures})
    try:
        rows, figures = server.play(path, arrivals, answers, replayed)
    except Foul as foul:
        pair.server = replace(pair.server, foul=foul.word, why=str(foul), trace=name)
        return
    pair.server = replace(pair.server, games={**pair.server.games, name: figures})
    pair.partings[name] = first_difference(replayed.rows, rows)


@dataclass(frozen=True)
class _Server:
    """The server with the arena's scheduler beside its model; ``folder`` is where the scheduler looks for its game."""

    http: str
    grpc: str
    key: str
    run_dir: Path
    folder: Path

    def answers(self, arrivals: Sequence[Arrival]) -> dict[str, list[int]]:
        """The model's answer to each request that is to end before its limit: all of it becomes the stop word."""
        lengths = rerun.as_sent(arrivals)
        records = rerun.send_on_time(self.grpc, lengths, VOCABULARY, IN_FLIGHT, 10 * PATIENCE_S)
        return {
            arrival.name: [int(token) for _, text in record.responses for token in text.split()]
            for arrival, record in zip(arrivals, records, strict=True)
            if arrival.word
        }

    def play(
        self, path: Path, arrivals: Sequence[Arrival], answers: Answers, replayed: Game
    ) -> tuple[Sequence[StepRow], dict[str, float]]:
        """One game: its steps and figures. Raises Foul."""
        at = {arrival.name: arrival.at for arrival in arrivals}
        most = most_steps(arrivals, SERVED)
        served.GameFile(str(path), sys.executable, most, at, replayed.after).write(self.folder)
        server_api.unload_model(self.http, MODEL, LOAD_S, self.key)
        server_api.load_model(self.http, MODEL, LOAD_S, self.key)
        pinned = [replace(arrival, after=replayed.after[arrival.name]) for arrival in arrivals]
        began = time.monotonic()
        try:
            records = rerun.send_step_by_step(self.grpc, self.run_dir, pinned, VOCABULARY, answers=answers)
        except LabError:
            if (outcome := served.GameOutcome.read(self.folder)) and outcome.foul:
                raise Foul(outcome.foul, outcome.why) from None
            raise
        outcome = served.GameOutcome.read(self.folder)
        assert outcome, "every request was answered"
        log = rerun.log_of(self.run_dir, self.folder / "steps-game.jsonl", began, records)
        rows = recording.read_recording(log).numbered().rows
        retime_steps(rows, arrivals, SERVED)
        return rows, verdict(rows, arrivals, SERVED, outcome.seconds)


@contextmanager
def _serving(session: Session, reuse: bool) -> Iterator[_Server]:
    lab, stack = session.catalog.stack(STACK)
    options = Options("cpu", {**SETTINGS, "enable_kv_cache_reuse": str(reuse).lower()})
    home = session.workspace.folder(HOME)
    home.path.mkdir(parents=True, exist_ok=True)
    (home.path / served.GAME).unlink(missing_ok=True)
    request = make_plan(session.workspace, lab, stack, options, str).request
    with replace_dir(home.overlay) as fresh:
        for place, origin in repository.origins(request).items():
            if place.startswith(f"{MODEL}/"):
                (fresh / place).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(origin, fresh / place)
        beside = served.BESIDE.format(folder=str(home.path))
        (fresh / MODEL / "1" / "scheduler.py").write_text(beside, encoding="utf-8")
    manifest = lab.stacks[stack]
    manifest = manifest.model_copy(update={"repository": [*manifest.repository, str(home.overlay)]})
    lab = lab.model_copy(update={"stacks": {**lab.stacks, stack: manifest}})
    # In a container the models cannot import the referee.
    with ephemeral_stack(session, lab, stack, replace(options, runtime="local", ports="auto")) as up:
        folder, endpoints = session.workspace.folder(stack), up.record.scrape_endpoints
        yield _Server(up.record.endpoints.http, endpoints["grpc"], folder.read_secret(), folder.run_dir(), home.path)
