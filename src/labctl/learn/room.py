"""A class's room, ``.labs/hub``: who is in it, by which password, and the folder in which each learner's work stands.

JupyterHub keeps its own state in the same folder (deploy/hub/jupyterhub_config.py). Nobody but its owner can look in.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from labctl.workspace import Workspace, key_lock
from labkit import disk
from labkit.disk import atomic_write
from labkit.errors import LabError

TEACHER = "teacher"
NAME = re.compile(r"[a-z][a-z0-9-]{0,30}")
HOME, LABS = "work", "labs"  # work/NAME is a learner's home, and labs in it the working folder
LOCK_S = 10.0
NOBODY = 65534  # the user of JupyterHub's and the learners' containers, where root called


@dataclass(frozen=True)
class Room:
    """The folder of one class; ``owner`` is the user who works in it, which is nobody where root has called."""

    path: Path

    @classmethod
    def of(cls, workspace: Workspace) -> Room:
        return cls(workspace.state / "hub")

    @property
    def owner(self) -> int:
        return os.getuid() or NOBODY

    def home(self, name: str) -> Path:
        return self.path / HOME / name

    def names(self) -> list[str]:
        """The learners, without the teacher."""
        return sorted({*self._passwords()} - {TEACHER})

    def require(self, name: str) -> None:
        """Raises LabError: nobody in the room has this name."""
        if name not in self._passwords():
            raise LabError(
                f"there is no {name!r} in the room",
                f"known: {', '.join(self.names()) or 'nobody'}",
                f"labctl hub add {name}",
                code="learner-unknown",
            )

    def admit(self, names: Iterable[str]) -> dict[str, str]:
        """Take in those who are not in the room yet, and the teacher. Returns the passwords of the new ones.

        A password is told here and nowhere else: what is kept of it is its hash. Raises LabError: a name is none.
        """
        admitted = list(dict.fromkeys((TEACHER, *names)))
        require_names(admitted)
        with self._changing() as kept:
            new = {name: self._renew(kept, name) for name in admitted if name not in kept}
        for name in admitted:
            self.home(name).mkdir(mode=0o700, exist_ok=True)
            self._give(self.home(name))
        return new

    def renew(self, name: str) -> str:
        """A new password for somebody who has lost theirs."""
        self.require(name)
        with self._changing() as passwords:
            return self._renew(passwords, name)

    def clear(self, name: str) -> Path | None:
        """An empty home for a learner, whose server is down. Returns where the old one is kept, if there is one."""
        self.require(name)
        home, kept = self.home(name), None
        if home.is_dir():
            kept = home.with_name(f"{name}.{time.strftime('%Y%m%d-%H%M%S')}")  # no learner's name has a dot
            home.rename(kept)
        home.mkdir(mode=0o700)
        self._give(home)
        return kept

    def knows(self, name: str, password: str) -> bool:
        """Whether this is the password of somebody in the room."""
        salt, _, kept = self._passwords().get(name, "00$").partition("$")
        return secrets.compare_digest(_hashed(password, salt), kept)

    def secret(self, name: str) -> str:
        """A secret that stays: of JupyterHub's cookies, or of labctl where it asks JupyterHub."""
        path = self.path / name
        if not path.exists():
            self.keep(name, secrets.token_hex(32))
        return disk.read_text(path)

    def keep(self, name: str, text: str) -> None:
        """A file of the room's, its owner's alone."""
        atomic_write(self.path / name, text, mode=0o600)
        self._give(self.path / name)

    def lay_token(self, name: str, token: str) -> None:
        """What a learner's server shows JupyterHub, as a file: the environment of a container can be looked at."""
        self.keep(f"tokens/{name}", token)

    # ----------------------------------------------------------------------------------------------------------------

    @property
    def _file(self) -> Path:
        return self.path / "passwords.json"

    def _passwords(self) -> dict[str, str]:
        try:
            found = disk.read_object(self._file)
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise LabError(
                f"{self._file} cannot be read",
                str(error),
                "move it away: labctl hub up then makes new passwords",
                code="room-damaged",
            ) from error
        return {name: str(kept) for name, kept in found.items()}

    @staticmethod
    def _renew(passwords: dict[str, str], name: str) -> str:
        salt, password = secrets.token_hex(16), secrets.token_hex(5)
        passwords[name] = f"{salt}${_hashed(password, salt)}"
        return password

    @contextlib.contextmanager
    def _changing(self) -> Iterator[dict[str, str]]:
        """The passwords, written when the block ends well; the lock is for two commands at once."""
        self.prepare()
        with key_lock(self._file, LOCK_S):
            passwords = self._passwords()
            yield passwords
            self.keep(self._file.name, json.dumps(passwords, indent=1))

    def prepare(self) -> None:
        """Make the folder, its owner's alone."""
        self.path.mkdir(parents=True, exist_ok=True)
        for folder in (self.path, self.path / HOME, self.path / "tokens"):
            folder.mkdir(mode=0o700, exist_ok=True)
            folder.chmod(0o700)
            self._give(folder)

    def _give(self, path: Path) -> None:
        if os.getuid() == 0:
            os.chown(path, self.owner, self.owner, follow_symlinks=False)


def require_names(names: Iterable[str]) -> None:
    """Raises LabError: one of them would be no plain folder."""
    for name in names:
        if not NAME.fullmatch(name):
            why = "a name is a letter, then letters, digits and - (at most 31), all in lower case"
            raise LabError(f"{name!r} cannot be a learner's name", why, "choose another", code="learner-name-bad")


def _hashed(password: str, salt: str) -> str:
    return hashlib.scrypt(password.encode(), salt=bytes.fromhex(salt), n=2**14, r=8, p=1).hex()
