"""``labctl up STACK --observe``: Prometheus, and in containers Grafana, beside a stack that is up."""

from __future__ import annotations

from labctl.errors import LabError
from labctl.orchestrator import ports
from labctl.orchestrator.session import Session
from labctl.orchestrator.up import UpOptions
from labctl.runtimes import observers
from labctl.runtimes.actions import Action
from labctl.runtimes.base import Endpoints, Record, Runtime
from labctl.runtimes.observers import Observers

USUAL = "9090,3000,9091"  # Prometheus, Grafana; the third is nobody's


def start(session: Session, runtime: Runtime, record: Record, options: UpOptions) -> None:
    """Start them, and say where they are.

    Raises:
        LabError: in containers they cannot be started, or their ports are taken; the stack stays up.
    """
    claimed = ports.claim("auto" if options.ports == "auto" else USUAL, "127.0.0.1", [])
    try:
        action = _action(session, runtime.name, record, claimed)
    except LabError as missing:
        session.listener.note(f"{missing.what}: {missing.why}. {missing.remedy}")
        return
    there = action.do(session.listener)
    session.listener.note(f"Prometheus: http://{there.prometheus}")
    if there.grafana:
        session.listener.note(f"Grafana: http://{there.grafana}, user admin, password in {there.password}")


def dry(session: Session, stack: str, runtime: str, options: UpOptions) -> Action[Observers]:
    """What :func:`start` would do."""
    chosen = ports.chosen("auto" if options.ports == "auto" else USUAL, "127.0.0.1")
    record = Record(stack=stack, lab="", runtime=runtime, profile="", settings={}, models=[], endpoints=chosen)
    return _action(session, runtime, record, chosen)


def _action(session: Session, runtime: str, record: Record, where: Endpoints) -> Action[Observers]:
    numbers = [int(endpoint.rpartition(":")[2]) for endpoint in vars(where).values()]
    if runtime == "compose":
        return observers.in_containers(session.workspace, record, numbers)
    return observers.as_process(session.workspace, record, numbers[0])
