"""What state a stack is in, read from the server itself: Triton's repository index and counters."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, NotRequired, TypedDict

from labctl.clock import Clock, Mode
from labctl.lab import Probe
from labctl.runtimes import balancer
from labctl.runtimes.base import Runtime, State
from labctl.runtimes.door import door_url
from labctl.runtimes.lock import holder
from labctl.runtimes.record import Endpoints, Record, Replica
from labctl.stack import edits, faults, replicas
from labctl.stack.session import Session, Unknown
from labctl.stack.stack import RunningStack
from labctl.triton import readiness, server_api
from labkit import disk
from labkit.client import metrics
from labkit.errors import LabError
from labkit.waiting import attempts

LOOK_S = 0.1
STALL_WINDOW_S = 1.5  # requests wait and nothing is executed for this long: longer than any step of ours
UNDER_WAY = {"up": "starting", "down": "stopping"}  # the state of a stack while that command holds it


class _ModelRow(TypedDict):
    """A model, as Triton and its answers have it."""

    name: str
    version: str
    state: str
    reason: str


class _ReplicaRow(TypedDict):
    """A server. Its last three values come from the balancer."""

    number: int
    endpoints: dict[str, str]
    state: str
    ended: str | None
    serving: NotRequired[bool]
    in_flight: NotRequired[int]
    requests: NotRequired[int]


class Status(TypedDict):
    """A stack, as ``labctl status STACK --json`` prints it. ``ended``: how it ended, or why its state is unknown."""

    stack: str
    lab: str
    runtime: str
    profile: str
    state: str
    endpoints: dict[str, str]
    models: list[_ModelRow]
    settings: dict[str, Any]
    effective: dict[str, Any]
    ended: str | None
    triton: str | None
    stuck: list[str]
    edited: list[edits.EditedFile]
    balance: str | None
    replicas: list[_ReplicaRow]
    clock: NotRequired[Mapping[str, Mode]]
    openai: NotRequired[str | None]
    env_file: NotRequired[str | None]  # for docker compose --env-file


@dataclass(frozen=True)
class _Server:
    """One server with its models, and those of them that stand still."""

    row: _ReplicaRow
    models: list[_ModelRow]
    clock: Mapping[str, Mode] = field(default_factory=dict)
    stuck: Sequence[str] = ()


def ready_status(stack: RunningStack) -> Status:
    """Describe a stack whose models have just answered, as :func:`status` does; Triton is asked its version alone."""
    session, record = stack.session, stack.record
    rows = {state.name: _model_row(state) for state in stack.answered}
    shown = _object(record, "ready", [rows[name] for name in record.models], _effective(session, record))
    shown["openai"] = door_url(session.workspace, record)
    shown["env_file"] = _by_hand(session, record)
    shown["replicas"] = [_row(server.number, server.endpoints, "ready") for server in record.servers]
    if stack.already:  # one that was just started has loaded every file as it is
        _add_edited(shown, stack)
    return shown


def _add_edited(shown: Status, running: RunningStack) -> None:
    """Say which files a person has edited, and whether the server has them."""
    with contextlib.suppress(LabError, OSError):  # a template that is being edited may be wrong just now
        shown["edited"] = edits.edit_report(running)


def status(session: Session, stack: str, ask: bool = True) -> Status:
    """The state of one stack.

    ``ask``: ask each model of an idle stack for a tiny answer; else Triton's own word is believed.
    """
    other = holder(session.workspace, stack)
    action = other.action if other else None
    try:
        found = session.state(stack)
    except Unknown as error:
        kept = session.remembered(stack) or _nothing(stack)
        ended = f"{error.what} ({error.why}); try: {error.remedy}"
        return _object(kept, UNDER_WAY.get(action or "", "unknown"), ended=ended)
    if found is None:
        return _unrecorded(session, stack, action)
    runtime, state = found
    return _running(session, runtime, state, action, ask) if state.alive else _dead(state, action)


def _unrecorded(session: Session, stack: str, action: str | None) -> Status:
    """A stack that no file says anything of: it is on its way, absent, or something was left of it."""
    if action:
        return absent(session, stack)
    for runtime in session.runtimes:
        with contextlib.suppress(LabError):  # no engine answers, and no file says that it has containers
            if left := runtime.leftovers(stack):
                ended = f"{', '.join(left)}: no file says what that serves; try: labctl down {stack}"
                return _object(_nothing(stack), "unknown", ended=ended)
    return absent(session, stack)


def absent(session: Session, stack: str) -> Status:
    """The state of a stack of which nothing is there: another command may be about to bring it up."""
    other = holder(session.workspace, stack)
    # The stack that exercises are checked on belongs to no lab.
    lab = next((lab.folder for lab in session.catalog.labs if stack in lab.stacks), "")
    return _object(_nothing(stack, lab), "starting" if other and other.action == "up" else "absent")


def _dead(state: State, action: str | None) -> Status:
    """A stack that was brought up, and of which no server runs."""
    if action in UNDER_WAY:
        return _object(state.record, UNDER_WAY[action])
    return _object(state.record, "removed" if state.removed else "failed", ended=state.death)


def _running(session: Session, runtime: Runtime, state: State, action: str | None, ask: bool) -> Status:
    """A stack of which a server runs."""
    record = state.record
    running = RunningStack.of(session, None, runtime, record)
    front = None if action else state.balancer_ended
    explain = faults.stack_explainer(running)
    probes: Mapping[str, Probe] = {}
    with contextlib.suppress(LabError):  # the stack is in no lab any more, or it was changed since
        probes = running.plan.served.probes
    seen = balancer.upstreams(session.workspace, record) if record.balance else {}
    scaling, _, count = (action or "").partition(" ")
    leaving = record.servers[int(count) :] if scaling == replicas.SCALE else ()
    servers = []
    for replica in record.servers:
        if replica.number in state.alive:
            servers.append(_server(session, record, replica, probes if ask else {}, action, explain))
            if replica in leaving:
                servers[-1].row["state"] = "stopping"
        else:
            reason = state.ended.get(replica.number, "it ended, and nobody saw how")
            row = _row(replica.number, replica.endpoints, "failed", reason)
            servers.append(_Server(row, _unavailable(record, reason)))
    # While the stack is scaled, a server that comes or goes does not make the stack degraded.
    comes_or_goes = UNDER_WAY.values() if scaling == replicas.SCALE else ()
    settled = [server for server in servers if server.row["state"] not in comes_or_goes] or servers
    common = UNDER_WAY.get(action or "") or _common_state({server.row["state"] for server in settled})
    if front and common != "failed":
        common = "degraded"
    models = [_of_all(number, settled, bool(record.balance)) for number in range(len(record.models))]
    shown = _object(record, common, models, _effective(session, record), ended=front)
    shown["clock"] = servers[0].clock
    shown["openai"] = door_url(session.workspace, record)
    shown["env_file"] = _by_hand(session, record)
    shown["stuck"] = [sentence for server in servers for sentence in server.stuck]
    _add_edited(shown, running)
    shown["replicas"] = [server.row for server in servers]
    for shown_row in shown["replicas"]:
        if health := seen.get(shown_row["number"]):
            shown_row |= {"serving": health.healthy, "in_flight": health.active, "requests": health.total}
            if health.draining and shown_row["state"] in ("ready", "stopping"):
                shown_row["state"] = "draining"
    return shown


def trouble(session: Session, stack: str, ask: bool) -> str | None:
    """Say what is wrong with a stack, in a sentence; None where it serves, or its clock stands still."""
    try:
        shown = status(session, stack, ask)
    except LabError as error:
        return error.what
    if shown["state"] in ("ready", "paused"):
        return None
    reasons = (f"{row['name']}: {row['reason']}" for row in shown["models"] if row["state"] != "READY")
    return ": ".join([shown["state"], shown["ended"] or next(reasons, f"labctl status {stack}")])


def death_of_stack(session: Session, stack: str) -> LabError | None:
    """The error for a stack that was brought up and has died: how it ended, and its last words. None if it lives.

    Raises Unknown: its runtime cannot be asked.
    """
    found = session.state(stack)
    if found is None or found[1].alive:
        return None
    runtime, state = found
    how = state.death or "nobody saw how"
    if state.removed:
        remedy = f"labctl down {stack}, labctl up {stack}"
        return LabError(f"the server of {stack} is gone: {how}", "not by labctl", remedy, code="server-removed")
    remedy = f"labctl up {stack}; docs/operate/security.md says what one request can do to this Triton"
    details = faults.tail(runtime, stack)
    return LabError(f"the server of {stack} died: {how}", "", remedy, details=details, code="server-died")


def _common_state(states: Set[str]) -> str:
    """The state of a stack whose servers are in these states."""
    if len(states) == 1:
        return next(iter(states))
    return next((state for state in ("stalled", "paused") if states == {state, "ready"}), "degraded")


def _nothing(stack: str, lab: str = "") -> Record:
    """The record of a stack that labctl did not bring up."""
    return Record(stack, lab, "", "", {}, (), Endpoints("", "", ""))


def _server(
    session: Session,
    record: Record,
    server: Replica,
    probes: Mapping[str, Probe],
    action: str | None,
    explain: Callable[[str], str],
) -> _Server:
    """One server that exists."""
    folder, number = session.workspace.folder(record.stack), record.folder(server.number)
    alone = record.only(server.number) if number else record
    models = _models(alone, folder.read_secret())
    live = server_api.is_live(alone.endpoints.http)
    clock = Clock(folder.run_dir(number), tuple(record.models))
    paused = live and bool(clock.paused)
    watched = live and not action and not paused
    stuck = faults.stuck_models(session, record.stack, explain, number) if watched else []
    stalled = watched and bool(stuck or stalled_models(alone))
    ill = readiness.failing_models(alone.endpoints.http, probes) if probes and watched and not stalled else {}
    for row in models:
        if row["name"] in ill:
            row["state"], row["reason"] = "UNAVAILABLE", ill[row["name"]]
        row["reason"] = explain(row["reason"])
    if not live:
        state = "starting"
    elif any(row["state"] != "READY" for row in models):
        state = "degraded"
    else:
        state = "paused" if paused else "stalled" if stalled else "ready"
    return _Server(_row(server.number, alone.endpoints, state), models, clock.modes(), stuck)


def _row(number: int, endpoints: Endpoints, state: str, ended: str | None = None) -> _ReplicaRow:
    return {"number": number, "endpoints": vars(endpoints), "state": state, "ended": ended}


def _model_row(model: server_api.ModelState) -> _ModelRow:
    return {"name": model.name, "version": model.version, "state": model.state, "reason": model.reason}


def _unavailable(record: Record, reason: str) -> list[_ModelRow]:
    return [{"name": name, "version": "", "state": "UNAVAILABLE", "reason": reason} for name in record.models]


def _of_all(model: int, servers: Sequence[_Server], several: bool) -> _ModelRow:
    """A model's row over all servers: READY if it is on each; else the row says on which it is not, and why."""
    worst = next((server for server in servers if server.models[model]["state"] != "READY"), servers[0])
    row = worst.models[model]
    if row["state"] == "READY" or not several:
        return row
    return {**row, "reason": f"replica {worst.row['number']}: {row['reason']}"}


def stalled_models(record: Record) -> list[str]:
    """Models with waiting requests that execute nothing for ``STALL_WINDOW_S`` seconds.

    Cancelled iterative sequences keep Triton's sequence slots until they have idled out; while every slot is kept,
    requests wait although the server says READY.
    """
    before = _waiting(record)
    for _ in attempts(STALL_WINDOW_S, LOOK_S):
        if not before:
            return []
        now = _waiting(record)
        before = {name: count for name, count in before.items() if now.get(name) == count}
    return sorted(before)


def _waiting(record: Record) -> dict[str, float]:
    """exec_count of each model that has pending requests."""
    with contextlib.suppress(Exception):  # the counters are a help here, never a reason to fail
        snapshot = metrics.scrape(record.endpoints.metrics)
        return {
            name: model.exec_count
            for name, model in snapshot.models.items()
            if model.pending > 0 and name in record.models
        }
    return {}


def _models(record: Record, key: str | None) -> list[_ModelRow]:
    """One row per expected model; a model that Triton does not know is UNAVAILABLE."""
    rows = {row["name"]: row for row in _unavailable(record, "not in Triton's repository index")}
    with contextlib.suppress(server_api.Unreachable):
        for model in server_api.model_states(record.endpoints.http, key):
            if model.name in rows:
                rows[model.name] = _model_row(model)
    return list(rows.values())


def _by_hand(session: Session, record: Record) -> str | None:
    """Return the file with which ``docker compose`` knows the stack, from the current folder."""
    path = session.workspace.folder(record.stack).env_file
    return os.path.relpath(path) if path.is_file() else None


def _effective(session: Session, record: Record) -> dict[str, Any]:
    """What is really in force where it differs from what was asked; the models write it beside their step logs."""
    effective = dict(record.effective)
    with contextlib.suppress(OSError, ValueError):
        effective |= disk.read_object(session.workspace.folder(record.stack).run_dir() / "effective.json")
    return effective


def _object(
    record: Record,
    state: str,
    models: Sequence[_ModelRow] = (),
    effective: Mapping[str, Any] | None = None,
    ended: str | None = None,
) -> Status:
    folder = {"tokenizer_dir": record.tokenizer_dir} if record.tokenizer_dir else {}
    return {
        "stack": record.stack,
        "lab": record.lab,
        "runtime": record.runtime,
        "profile": record.profile,
        "state": state,
        "endpoints": vars(record.endpoints) if record.runtime else {},
        "models": [*models],
        "settings": {**record.settings, **folder},
        "effective": {**(effective or {})},
        "ended": ended,
        "triton": server_api.server_version(record.endpoints.http) if models else None,
        "stuck": [],
        "edited": [],
        "balance": record.balance,
        "replicas": [],
    }
