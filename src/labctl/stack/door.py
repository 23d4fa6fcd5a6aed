"""``labctl up STACK --openai``: the OpenAI API beside a stack that is up."""

from __future__ import annotations

from labctl.options import Options
from labctl.runtimes import door
from labctl.runtimes.record import Record
from labctl.stack import ports
from labctl.stack.session import Session
from labkit.errors import LabError
from labkit.tls import CertificatePair

USUAL = 9000  # as Triton's own front has it
AGAIN = "free it, then labctl openai STACK (with --port auto on a free port)"


def start_door(session: Session, record: Record, options: Options, tls: CertificatePair | None) -> None:
    """Start it, and say where it is; harmless where it runs already.

    Raises LabError: it cannot be started, or its port is taken, or it runs already and without ``tls``; the stack stays
    up.
    """
    address = door.door_url(session.workspace, record)
    if tls and address.startswith("http:"):
        why = f"it runs without TLS at {address}"
        raise LabError(
            f"the OpenAI API of {record.stack} is up already",
            why,
            f"labctl down {record.stack}, then up again",
            code="openai-already-up",
        )
    if not address:
        if options.ports == "auto":
            (port,) = ports.free_ports(record.bind, 1)
        else:
            port = USUAL
            ports.require_free({"OpenAI": port}, record.bind, session.running(), AGAIN)
        address = door.start_door_server(session.workspace, record, port, session.listener, tls)
    session.listener.note(describe_door(record.stack, address, record.bind if record.exposed else ""))


def describe_door(stack: str, address: str, exposed: str) -> str:
    """Where the OpenAI API of a stack is; if other machines reach it (``exposed``), also how to get its token."""
    if exposed:
        return f"OpenAI API: {address}, exposed on {exposed}; its API key is the token: labctl status {stack} --token"
    return f"OpenAI API: {address}"
