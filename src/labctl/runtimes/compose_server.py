"""A server container that is being watched: is it still on its way, and if not, how did it end?"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from labctl.runtimes import docker_engine
from labctl.runtimes.record import Record
from labkit.errors import LabError

ENGINE_PATIENCE_S = 3.0


class ComposeServer:
    """Server containers that are being watched, and what stands before them.

    Args:
        containers: with what an error calls each; "" is a stack's only server.
    """

    def __init__(self, containers: Sequence[tuple[str, Any]], record: Record) -> None:
        self._containers = containers
        self._record = record
        self._silent_since: float | None = None

    @property
    def record(self) -> Record:
        return self._record

    def serves(self) -> None:
        """Its shared memory is the container's own."""

    def exited(self) -> str | None:
        """Raises LabError when the engine itself stays silent."""
        import docker.errors

        try:
            for _, container in self._containers:
                container.reload()
        except docker.errors.NotFound:
            return "its container was removed"
        except docker_engine.engine_errors() as error:
            now = time.monotonic()
            self._silent_since = self._silent_since or now
            if now - self._silent_since > ENGINE_PATIENCE_S:
                raise LabError("the Docker engine stopped answering", "", "start it, then labctl down") from error
            return None
        self._silent_since = None
        for who, container in self._containers:
            if how := docker_engine.how_ended(container.attrs):
                return f"{who}: {how}" if who else how
        return None
