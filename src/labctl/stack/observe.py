"""``labctl up STACK --observe``: Prometheus, and in containers Grafana, beside a stack that is up."""

from __future__ import annotations

from collections.abc import Mapping

from labctl.runtimes import observers
from labctl.runtimes.actions import Action
from labctl.runtimes.base import Runtime
from labctl.runtimes.observers import Observers
from labctl.runtimes.record import Record, UpOptions
from labctl.stack import ports
from labctl.stack.session import Session
from labkit.errors import LabError

LOOPBACK = "127.0.0.1"
AGAIN = "labctl up STACK --observe (with --ports auto on free ports)"
USUAL = {"Prometheus": 9090, "Grafana": 3000}


def start(session: Session, runtime: Runtime, record: Record, options: UpOptions) -> None:
    """Start them, and say where they are.

    Raises:
        LabError: in containers they cannot be started, or their ports are taken; the stack stays up.
    """
    numbers = _ports(runtime.name, options)
    if options.ports != "auto":
        ports.require_free(numbers, LOOPBACK, [one for _, one in session.running()], f"free it, then {AGAIN}")
    try:
        action = _action(session, runtime.name, record, numbers)
    except LabError as missing:
        session.listener.note(f"{missing.what}: {missing.why}. {missing.remedy}")
        return
    there = session.do(action)
    if session.todo is not None:
        return
    session.listener.note(f"Prometheus: http://{there.prometheus}")
    if there.grafana:
        session.listener.note(f"Grafana: http://{there.grafana}, user admin, password in {there.password}")


def _ports(runtime: str, options: UpOptions) -> dict[str, int]:
    """The port of each program that is started: Grafana comes in containers alone, and not where it is left out."""
    names = [name for name in USUAL if name == "Prometheus" or (runtime == "compose" and observers.with_grafana())]
    picked = ports.free(LOOPBACK, len(names)) if options.ports == "auto" else [USUAL[name] for name in names]
    return dict(zip(names, picked, strict=True))


def _action(session: Session, runtime: str, record: Record, numbers: Mapping[str, int]) -> Action[Observers]:
    if runtime == "compose":
        return observers.in_containers(session.workspace, record, numbers["Prometheus"], numbers.get("Grafana"))
    return observers.as_process(session.workspace, record, numbers["Prometheus"])
