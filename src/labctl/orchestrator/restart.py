"""A running stack, taken down and brought up again as it was."""

from __future__ import annotations

from pathlib import Path

from labctl.errors import LabError
from labctl.manifest.schema import Lab
from labctl.orchestrator.down import down
from labctl.orchestrator.plan import Choices
from labctl.orchestrator.session import Session
from labctl.orchestrator.up import UpOptions, up
from labctl.runtimes.base import Record


def restart(session: Session, lab: Lab, stack: str) -> Record:
    """Down and up with the same runtime, settings, release, templates and ports.

    Raises:
        LabError: it is not up, or cannot be brought up again.
    """
    running = session.find(stack)
    if running is None:
        raise LabError(f"{stack} is not up", "", f"labctl up {stack}")
    runtime, record = running
    ports = ",".join(endpoint.rpartition(":")[2] for endpoint in vars(record.endpoints).values())
    given = {key: value for key, value in record.settings.items() if key in lab.settings}
    templates = Path(record.templates) if record.templates else None
    options = UpOptions(
        Choices(record.profile, given, record.release, templates), runtime.name, ports,
        expose=record.bind == "0.0.0.0",
    )  # fmt: skip
    down(session, stack)
    return up(session, lab, stack, options).record
