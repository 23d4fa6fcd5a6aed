"""A server container that is being watched: is it still on its way, and if not, how did it end?"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from labctl.errors import LabError
from labctl.runtimes.base import Record

ENGINE_PATIENCE_S = 3.0


class ComposeServer:
    """A server container that is being watched, and its guard's, if it has one."""

    def __init__(self, containers: Sequence[Any], record: Record) -> None:
        """``containers``: the server's, and after it its guard's, if it has one."""
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

        from labctl.runtimes import docker_engine

        try:
            for container in self._containers:
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
        server, *guard = (docker_engine.how_ended(container.attrs) for container in self._containers)
        return server or next((f"its guard: {how}" for how in guard if how), None)
