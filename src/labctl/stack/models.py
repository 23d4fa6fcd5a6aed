"""Loading and unloading a model of a running stack, on every one of its servers."""

from __future__ import annotations

from labctl.manifest.schema import Lab
from labctl.stack.edits import LOAD_S
from labctl.stack.lock import stack_lock
from labctl.stack.session import Session
from labctl.stack.stack import RunningStack
from labctl.triton import readiness, secret, server_api
from labkit.errors import LabError


def change(session: Session, lab: Lab, stack: str, model: str, load: bool, timeout: float = LOAD_S) -> int:
    """Load or unload a model on every server of a stack, one after the other: the others serve meanwhile.

    Returns:
        the number of servers.

    Raises:
        LabError: some of them did not; it says which, and why.
    """
    runtime, record = session.require_up(stack)
    if model not in record.models:
        raise LabError(f"{stack} has no model '{model}'", f"it has: {', '.join(record.models)}")
    key, failed = secret.read(session.workspace, stack), {}
    probe = RunningStack.of(session, lab, runtime, record).plan.stack.probes.get(model)
    with stack_lock(session.workspace, stack, "load" if load else "unload"):
        for server in record.servers:
            http = server.endpoints.http
            where = f" on replica {server.number}" if record.balance else ""
            session.listener.step(f"{'loading' if load else 'unloading'} {model}{where}")
            try:
                if load:
                    server_api.load_model(http, model, timeout, key)
                    if probe:
                        readiness.probe(http, model, probe, timeout)
                else:
                    server_api.unload_model(http, model, timeout, key)
                session.listener.done("READY" if load else "gone")
            except LabError as error:
                failed[server.number] = f"{error.what}: {error.why}" if error.why else error.what
                session.listener.done("failed")
    if failed:
        done = len(record.servers) - len(failed)
        verb = "loaded" if load else "unloaded"
        raise LabError(
            f"{model} was {verb} by {done} of {len(record.servers)} servers of {stack}", "",
            f"labctl status {stack}; labctl restart {stack} starts again what has died",
            details=[f"replica {number}: {why}" for number, why in failed.items()],
        )  # fmt: skip
    return len(record.servers)
