"""The folder of one stack, ``.labs/STACK``: every path that labctl has in it.

What is below ``run_dir`` may have been put there by a model, so it is opened without following links (``nofollow``);
all the rest is the caller's own, and ``require_own`` refuses anything else before it is changed.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from labkit.nofollow import folders, require_own

FILES = ("lock", "lock_note", "state_file", "compose_file", "envoy_file", "scale_log", "idle_log")
FOLDERS = ("repository", "front", "observe", "overlay")


@dataclass(frozen=True)
class StackFolder:
    """The paths of one stack; none of them need exist."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    # -- what every command uses -----------------------------------------------------------------------------------

    @property
    def state_file(self) -> Path:
        """The record of the stack that was brought up last: a memory of it, never the proof that it runs."""
        return self.path / "state.json"

    @property
    def was_up(self) -> bool:
        """Whether the stack was brought up and not taken down, as far as its state file tells."""
        return os.path.lexists(self.state_file)

    @property
    def lock(self) -> Path:
        return self.path / "lock"

    @property
    def lock_note(self) -> Path:
        """Who holds the lock."""
        return self.path / "lock.json"

    @property
    def secret(self) -> Path:
        """By which Triton tells labctl from a stranger (``labctl.secret``)."""
        return self.path / "secret"

    @property
    def repository(self) -> Path:
        """The rendered model repository that the server reads."""
        return self.path / "repository"

    # -- what servers write ----------------------------------------------------------------------------------------

    def run_dir(self, replica: int = 0) -> Path:
        """What the server itself writes (step logs): the one writable mount of a container.

        A replica writes into a folder of its own in it; 0 is the stack's.
        """
        folder = self.path / "run"
        return folder / f"replica-{replica}" if replica else folder

    @property
    def run_dirs(self) -> list[Path]:
        """The run folder and its replicas' folders in it."""
        return folders(self.run_dir())

    def log_file(self, replica: int = 0) -> Path:
        """The log of the server and its guard; where there are replicas, of the balancer, and one of each replica."""
        return self.path / (f"server-{replica}.log" if replica else "server.log")

    @property
    def replica_logs(self) -> list[Path]:
        return sorted(self.path.glob("server-*.log"))

    def ended_file(self, replica: int = 0) -> Path:
        """How the server died, as its keeper says (local runtime)."""
        return self.path / (f"ended-{replica}.json" if replica else "ended.json")

    @property
    def ended_files(self) -> list[Path]:
        """The ended files of the stack's replicas."""
        return sorted(self.path.glob("ended-*.json"))

    # -- what stands before and beside the servers -----------------------------------------------------------------

    @property
    def front(self) -> Path:
        """The folder from which a balancer reads its servers."""
        return self.path / "front"

    @property
    def envoy_file(self) -> Path:
        """Envoy's configuration (local runtime)."""
        return self.path / "envoy.json"

    @property
    def compose_file(self) -> Path:
        """What this stack has otherwise than the Compose files of the checkout."""
        return self.path / "compose.json"

    @property
    def observe(self) -> Path:
        """What Prometheus has, and Grafana's password: gone with the stack."""
        return self.path / "observe"

    @property
    def scale_log(self) -> Path:
        """The decisions of ``labctl scale --auto``."""
        return self.path / "scale.log"

    def address_file(self, page: str) -> Path:
        """Where one of the stack's pages (chat, watch) listens."""
        return self.path / f"{page}.address"

    def hub_token(self) -> Path:
        """The pipe through which this process gives a builder's container the Hub token."""
        return self.path / f"hub-token-{os.getpid()}"

    # -- the exercises' own stack ----------------------------------------------------------------------------------

    @property
    def overlay(self) -> Path:
        """The learner's files, as a repository over the lab's."""
        return self.path / "overlay"

    @property
    def asked_runtime(self) -> Path:
        """The runtime that was asked for last."""
        return self.path / "runtime"

    @property
    def purpose_file(self) -> Path:
        """What the server was brought up for."""
        return self.path / "purpose.json"

    @property
    def used_file(self) -> Path:
        """Touched at every check: the server goes when this is old. Its text says which watcher looks at it."""
        return self.path / "used"

    @property
    def clean_file(self) -> Path:
        """Exists while the models hold nothing of an earlier check that failed."""
        return self.path / "clean"

    @property
    def idle_log(self) -> Path:
        return self.path / "idle.log"

    # ----------------------------------------------------------------------------------------------------------------

    def require_own(self) -> None:
        """Refuse a folder in which something is not the caller's own file or folder.

        Raises:
            LabError: a link, a FIFO, a folder in a file's place, or another user's file; it is named, and nothing is
                touched.
        """
        for path in (self.path.parent, self.path, self.run_dir(), *(getattr(self, name) for name in FOLDERS)):
            require_own(path, "folder")
        for path in (*(getattr(self, name) for name in FILES), self.log_file(), *self.replica_logs):
            require_own(path, "file")
        for path in self.path.iterdir() if self.path.is_dir() else ():
            require_own(path, "")
