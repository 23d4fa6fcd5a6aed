"""``labctl up STACK --openai``: the OpenAI API beside a stack that is up."""

from __future__ import annotations

from labctl.runtimes import door
from labctl.runtimes.record import LOOPBACK, Record, UpOptions
from labctl.stack import ports
from labctl.stack.session import Session

USUAL = 9000  # as Triton's own front has it
AGAIN = "free it, then labctl openai STACK (with --port auto on a free port)"


def start(session: Session, record: Record, options: UpOptions) -> str:
    """Start it, say where it is, and return its base URL.

    Raises LabError: it cannot be started, or its port is taken; the stack stays up.
    """
    if options.ports == "auto":
        (port,) = ports.free_ports(LOOPBACK, 1)
    else:
        port = USUAL
        ports.require_free({"OpenAI": port}, LOOPBACK, [one for _, one in session.running()], AGAIN)
    address = session.do(door.beside(session.workspace, record, port))
    if session.todo is None:
        session.listener.note(f"OpenAI API: {address}")
    return address
