"""A class's room, ``.labs/hub``: its two passwords, and the folder in which each learner's work stands.

JupyterHub keeps its own state in the same folder (deploy/hub/jupyterhub_config.py). Only its owner can open the folder.
"""

from __future__ import annotations

import os
import re
import secrets
from dataclasses import dataclass
from pathlib import Path

from labctl.workspace import Workspace
from labkit import disk
from labkit.disk import atomic_write

TEACHER = "teacher"
NAME = re.compile(r"[a-z][a-z0-9-]{0,30}\Z")  # a learner's name is also the name of a folder and of a container
HOME, LABS = "work", "labs"  # work/NAME is a learner's home, and labs in it the working folder
NOBODY = 65534  # the user in JupyterHub's and the learners' containers, if root called labctl


@dataclass(frozen=True)
class Room:
    """The folder of one class. ``owner`` is the user who works in it: `nobody` (65534) if root called."""

    path: Path

    @classmethod
    def of(cls, workspace: Workspace) -> Room:
        return cls(workspace.state / "hub")

    @property
    def owner(self) -> int:
        return os.getuid() or NOBODY

    def names(self) -> list[str]:
        """The learners who have a folder, without the teacher."""
        found = (path.name for path in (self.path / HOME).glob("*") if NAME.match(path.name))
        return sorted({*found} - {TEACHER})

    def open_home(self, name: str) -> Path:
        """Make a learner's folder at the first login: Docker would make one that belongs to root."""
        home = self.path / HOME / name
        home.mkdir(mode=0o700, exist_ok=True)
        self._give(home)
        return home

    @property
    def password(self) -> str:
        """The learners' password: ten characters, for people copy it from a wall."""
        return self._secret("password", 5)

    @property
    def teacher_password(self) -> str:
        """The teacher's password. JupyterHub takes none below 32 characters."""
        return self._secret("teacher_password", 16)

    @property
    def cookie_secret(self) -> bytes:
        return bytes.fromhex(self._secret("cookie_secret", 32))

    def lay_token(self, name: str, token: str) -> None:
        """Write the token that a learner's server shows JupyterHub: others can read a container's environment."""
        self._keep(f"tokens/{name}", token)

    def prepare(self) -> None:
        """Make the folder, which only its owner can open."""
        self.path.mkdir(parents=True, exist_ok=True)
        for folder in (self.path, self.path / HOME, self.path / "tokens"):
            folder.mkdir(mode=0o700, exist_ok=True)
            folder.chmod(0o700)
            self._give(folder)

    def _secret(self, name: str, size: int) -> str:
        """A secret of ``size`` random bytes, drawn once: to change one, delete its file."""
        path = self.path / name
        if not path.exists():
            self._keep(name, secrets.token_hex(size))
        return disk.read_text(path)

    def _keep(self, name: str, text: str) -> None:
        """Write a file that only the room's owner can read."""
        atomic_write(self.path / name, text, mode=0o600)
        self._give(self.path / name)

    def _give(self, path: Path) -> None:
        if os.getuid() == 0:
            os.chown(path, self.owner, self.owner, follow_symlinks=False)
