"""What state a stack is in, read from the server itself: Triton's repository index and counters."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from labctl.clock.clock import Clock
from labctl.manifest.schema import Lab, Probe, lay_overlays, probes
from labctl.runtimes.lock import holder
from labctl.runtimes.record import Record, Replica
from labctl.stack import edits, faults, replicas
from labctl.stack.session import Session
from labctl.stack.stack import RunningStack
from labctl.triton import readiness, server_api
from labguard.admin import Seen
from labkit import nofollow
from labkit.errors import LabError
from labkit.evidence import metrics

STALL_WINDOW_S = 1.5  # requests wait and nothing is executed for this long: longer than any step of ours


def status(session: Session, stack: str, ask: bool = True) -> dict[str, Any]:
    """The status object of one stack, as ``labctl status STACK --json`` prints it (design: the command line).

    Args:
        ask: ask the models of an idle stack for a tiny answer each; else what Triton says of them is believed.
    """
    _, action = holder(session.workspace, stack)
    server = session.find(stack)
    record = server[1] if server else session.remembered(stack)
    if record is None:
        # The exercises' own stack is no lab's.
        lab = next((lab.folder for lab in session.catalog.labs if stack in lab.stacks), "")
        state = "starting" if action == "up" else "absent"
        return _object(stack, lab, state, record=None)
    if server is None:
        state = {"up": "starting", "down": "stopping"}.get(action, "failed")
        ended = session.runtime(record.runtime).death_of(stack) if state == "failed" else ""
        return _object(stack, record.lab, state, record, ended=ended)
    front = "" if action else server[0].front_death(record)
    if front and not record.balance:  # its server can be reached through the guard alone
        models = [{"name": n, "version": "", "state": "UNAVAILABLE", "reason": front} for n in record.models]
        return _object(stack, record.lab, "degraded", record, models, ended=front)
    runtime = server[0]
    taught = _lab(session, record)
    there = RunningStack.of(session, taught, runtime, record) if taught else None
    explain = faults.stack_explainer(there) if there else str
    gone = [one.number for one in replicas.missing_replicas(runtime, record)] if record.balance else []
    seen = runtime.balancer_view(record) if record.balance else {}
    leaving = replicas.leaving_replicas(action, record)
    servers = [
        _dead(record, one, runtime.death_of(stack, one.number))
        if one.number in gone
        else _server(session, record, one, ask, action, explain)
        | ({"state": "stopping"} if one.number in leaving else {})
        for one in record.servers
    ]
    # One that comes or goes because somebody scales is no fault of the others.
    scaling = action.startswith(replicas.SCALE)
    settled = [one for one in servers if not scaling or one["state"] not in ("starting", "stopping")] or servers
    state = _state_of_all([one["state"] for one in settled])
    if action in ("up", "down"):
        state = {"up": "starting", "down": "stopping"}[action]
    elif front and state != "failed":
        state = "degraded"
    models = [_of_all(name, settled, bool(record.balance)) for name in record.models]
    shown = _object(stack, record.lab, state, record, models, _effective(session, record), ended=front)
    edited = _edit_rows(there) if there else []
    return {
        **shown,
        "clock": servers[0]["clock"],
        "stuck": [sentence for one in servers for sentence in one["stuck"]],
        "edited": edited,
        "replicas": [_replica(one, seen.get(one["number"])) for one in servers],
    }


def _server(
    session: Session, record: Record, server: Replica, ask: bool, action: str, explain: Callable[[str], str]
) -> dict[str, Any]:
    """One server that exists: its state, its models' and what of them stands still."""
    number = record.folder(server.number)
    one = record.only(server.number) if number else record
    models = _models(one, session.workspace.folder(record.stack).read_secret())
    live = server_api.is_live(one.endpoints.http)
    clock = Clock(session.workspace.folder(record.stack).run_dir(number), tuple(record.models))
    paused = live and bool(clock.paused)
    stuck = faults.stuck_models(session, record.stack, explain, number) if live and not action and not paused else []
    stalled = live and not action and not paused and bool(stuck or stalled_models(one))
    if ask and live and not action and not stalled and not paused:
        ill = readiness.failing_models(one.endpoints.http, _probes(session, record))
        models = [m | {"state": "UNAVAILABLE", "reason": ill[m["name"]]} if m["name"] in ill else m for m in models]
    models = [m | {"reason": explain(m["reason"])} for m in models]
    if not live:
        state = "starting"
    elif any(m["state"] != "READY" for m in models):
        state = "degraded"
    else:
        state = "paused" if paused else "stalled" if stalled else "ready"
    return {
        "number": server.number,
        "endpoints": vars(one.endpoints),
        "state": state,
        "models": models,
        "clock": clock.modes(),
        "stuck": stuck,
        "ended": "",
    }


def _dead(record: Record, server: Replica, how: str) -> dict[str, Any]:
    """A replica of which nothing exists any more."""
    reason = how or "it ended, and nobody saw how"
    models = [{"name": name, "version": "", "state": "UNAVAILABLE", "reason": reason} for name in record.models]
    return {
        "number": server.number,
        "endpoints": vars(server.endpoints),
        "state": "failed",
        "models": models,
        "clock": {},
        "stuck": [],
        "ended": reason,
    }


def _state_of_all(states: Sequence[str]) -> str:
    """Of a stack whose servers are in these states; one server's is the stack's."""
    if len(set(states)) == 1:
        return states[0]
    return next((state for state in ("stalled", "paused") if set(states) == {state, "ready"}), "degraded")


def _of_all(name: str, servers: Sequence[Mapping[str, Any]], several: bool) -> dict[str, str]:
    """A model's row: it is READY where every server's is; else it says whose is not, and why."""
    rows = [(one["number"], row) for one in servers for row in one["models"] if row["name"] == name]
    number, worst = next(((n, row) for n, row in rows if row["state"] != "READY"), rows[0])
    if worst["state"] == "READY" or not several:
        return dict(worst)
    return {**worst, "reason": f"replica {number}: {worst['reason']}"}


def _replica(one: Mapping[str, Any], seen: Seen | None) -> dict[str, Any]:
    """A server as ``labctl status --json`` shows it, with what the balancer counts of it."""
    told = {"serving": seen.healthy, "in_flight": seen.active, "requests": seen.total} if seen else {}
    state = "draining" if seen and seen.draining and one["state"] in ("ready", "stopping") else one["state"]
    return {"number": one["number"], "endpoints": one["endpoints"], "state": state, "ended": one["ended"], **told}


def _lab(session: Session, record: Record) -> Lab | None:
    """The lab of a stack; None for one that is in no manifest (any more)."""
    with contextlib.suppress(LabError):
        return session.catalog.stack(record.stack)[0]
    return None


def _edit_rows(stack: RunningStack) -> list[dict[str, Any]]:
    with contextlib.suppress(LabError, OSError):  # a template that is being edited may be wrong just now
        return edits.edit_report(stack)
    return []


def stalled_models(record: Record, window: float = STALL_WINDOW_S) -> list[str]:
    """Models with waiting requests of which none is executed during ``window`` seconds.

    Cancelled iterative sequences keep Triton's sequence slots until they have idled out; while every slot is kept,
    requests wait although the server says READY.
    """
    before = _waiting(record)
    if not before:
        return []
    deadline = time.monotonic() + window
    while before and time.monotonic() < deadline:
        time.sleep(0.1)
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


def _models(record: Record, key: str) -> list[dict[str, str]]:
    """One row per expected model; a model that Triton does not know is UNAVAILABLE."""
    rows: dict[str, dict[str, str]] = {}
    with contextlib.suppress(server_api.Unreachable):
        rows = {
            s.name: {"name": s.name, "version": s.version, "state": s.state, "reason": s.reason}
            for s in server_api.model_states(record.endpoints.http, key)
        }
    unknown = {"version": "", "state": "UNAVAILABLE", "reason": "not in Triton's repository index"}
    return [rows.get(name, {"name": name, **unknown}) for name in record.models]


def _probes(session: Session, record: Record) -> Mapping[str, Probe]:
    """The stack's probes with the settings that it runs with."""
    scope: dict[str, Any] = {f"settings.{key}": value for key, value in record.settings.items()}
    scope |= {"profile": record.profile, "stack": record.stack}
    with contextlib.suppress(LabError, KeyError):  # a lab that was changed since
        stack = session.catalog.stack(record.stack)[0].stacks[record.stack]
        stack = lay_overlays(stack, record.profile, record.settings)
        return probes(stack, scope)
    return {}


def _effective(session: Session, record: Record) -> Mapping[str, Any]:
    """What is really in force where it differs from what was asked; the models write it beside their step logs."""
    effective = dict(record.effective)
    with contextlib.suppress(OSError, ValueError):
        effective |= nofollow.read_object(session.workspace.folder(record.stack).run_dir() / "effective.json")
    return effective


def _object(
    stack: str,
    lab: str,
    state: str,
    record: Record | None,
    models: list[dict[str, str]] | None = None,
    effective: Mapping[str, Any] | None = None,
    ended: str = "",
) -> dict[str, Any]:
    if record is None:
        return {
            "stack": stack,
            "lab": lab,
            "runtime": "",
            "profile": "",
            "state": state,
            "endpoints": {},
            "models": [],
            "settings": {},
            "effective": {},
            "ended": "",
            "triton": "",
            "stuck": [],
            "edited": [],
            "balance": "",
            "exposed": "",
            "replicas": [],
        }
    settings = dict(record.settings)
    if record.tokenizer_dir:
        settings["tokenizer_dir"] = record.tokenizer_dir
    return {
        "stack": stack,
        "lab": lab,
        "runtime": record.runtime,
        "profile": record.profile,
        "state": state,
        "endpoints": vars(record.endpoints),
        "models": models or [],
        "settings": settings,
        "effective": dict(effective or {}),
        "ended": ended,
        "triton": server_api.server_version(record.endpoints.http) if models else "",
        "stuck": [],
        "edited": [],
        "balance": record.balance,
        "exposed": record.bind if record.guarded else "",
        "replicas": [],
    }
