"""``labctl up STACK --openai``: the OpenAI API beside a stack that is up."""

from __future__ import annotations

from labctl.options import Options
from labctl.runtimes import door
from labctl.runtimes.record import Record
from labctl.stack import ports
from labctl.stack.session import Session

USUAL = 9000  # the port of Triton's own OpenAI frontend
AGAIN = "free it, then labctl openai STACK (with --port auto on a free port)"


def start_door(session: Session, record: Record, options: Options) -> None:
    """Start the OpenAI API and say where it is; harmless if it runs already.

    Raises LabError: it cannot be started, or its port is taken; the stack stays up.
    """
    address = door.door_url(session.workspace, record)
    if not address:
        if options.ports == "auto":
            (port,) = ports.free_ports(1)
        else:
            port = USUAL
            ports.require_free({"OpenAI": port}, session.running, AGAIN)
        address = door.start_door_server(session.workspace, record, port, session.listener)
    session.listener.note(f"OpenAI API: {address}")
