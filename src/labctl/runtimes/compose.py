"""The compose runtime, as far as this version has it: it finds out whether a Docker engine answers.

No stack has containers yet, so every start on it is refused in words; ``--runtime auto`` then takes the local runtime
and says so. What it may have to answer about running stacks is simply that there are none.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from labctl.errors import LabError
from labctl.report import Report
from labctl.runtimes import processes
from labctl.runtimes.base import Endpoints, Launch, Record, Server
from labctl.workspace import Workspace

PROBE_S = 4.0
LOCAL = "--runtime local runs the same Triton as a process of this machine"


class ComposeRuntime:
    """Stacks in containers: refused, with the reason."""

    name = "compose"

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace

    def check(self, profile: str) -> None:
        engine = engine_version()
        raise LabError(
            "this version has no containers for its stacks yet", f"a Docker engine {engine} answers, unused", LOCAL
        )

    def prepare(self, profile: str, report: Report, image: str = "") -> None:
        self.check(profile)

    def server_path(self, path: Path) -> str:
        return str(path)

    client_path = server_path

    def client_endpoints(self, record: Record) -> Endpoints:
        return record.endpoints

    def tool(self, argv: Sequence[str], report: Report) -> str:
        raise self._none()

    def start(self, launch: Launch, report: Report) -> Server:
        raise self._none()

    def run_client(self, argv: Sequence[str], record: Record | None, out: Path, report: Report) -> int:
        raise self._none()

    def logs(self, stack: str, follow: bool = False) -> Iterator[str]:
        raise self._none()

    def find(self, stack: str) -> Record | None:
        return None

    def running(self) -> list[Record]:
        return []

    def stop(self, stack: str, report: Report, force: bool = False) -> None:
        """Nothing of ours can run there."""

    def leftovers(self, stack: str) -> list[str]:
        return []

    @staticmethod
    def _none() -> LabError:
        return LabError("this version has no containers for its stacks yet", "", LOCAL)


def engine_version() -> str:
    """The version of the Docker engine that answers, within a few seconds.

    Raises:
        LabError: there is no docker client, or no engine behind it.
    """
    command = ["docker", "version", "--format", "{{.Server.Version}}"]
    try:
        done = processes.ask(command, PROBE_S)
    except FileNotFoundError:
        raise LabError("no Docker engine answers", "there is no docker command", LOCAL) from None
    except subprocess.TimeoutExpired:
        raise LabError("no Docker engine answers", f"docker said nothing within {PROBE_S:g} s", LOCAL) from None
    if done.returncode or not done.stdout.strip():
        why = done.stderr.strip().splitlines()
        raise LabError("no Docker engine answers", why[-1] if why else "", f"start it, or {LOCAL}")
    return done.stdout.strip()
