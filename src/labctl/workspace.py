"""Every path the program writes, under one root, and the few ways in which it writes.

Three rules hold for all of them: a file appears whole or not at all (temporary name, then rename), a folder is
exchanged for another in one step (where the file system can; else in two renames), and whatever is made once per key
is made under that key's lock.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from labctl import unfinished
from labctl.stackfolder import StackFolder
from labkit.disk import cache_folder, disk_errors
from labkit.errors import LabError

INSTALLED_FROM = Path(__file__).resolve().parents[2]  # a checkout, where labctl is installed editable
AT_FDCWD, RENAME_EXCHANGE = -100, 2  # linux/fcntl.h, linux/fs.h
MARKER = "model_repos"  # a folder that only a checkout of the labs has beside pyproject.toml


@dataclass(frozen=True)
class Workspace:
    """A checkout and the cache it shares with other clones."""

    root: Path
    cache: Path

    @classmethod
    def find(cls, start: Path | None = None) -> Workspace:
        """The checkout that contains ``start`` (default: ``LABS_ROOT``, else the current folder).

        Where the current folder is in none, it is the checkout that labctl is installed from (``make setup``).

        Raises:
            LabError: none of these is a checkout.
        """
        asked = os.environ.get("LABS_ROOT") or start
        try:
            origin = Path(asked or Path.cwd()).absolute()
        except FileNotFoundError:
            raise LabError(
                "the current folder does not exist any more", "it was deleted", "cd into your clone"
            ) from None
        for folder in (origin, *origin.parents, *([] if asked else [INSTALLED_FROM])):
            if (folder / "pyproject.toml").is_file() and (folder / MARKER).is_dir():
                return cls(folder, cache_folder())
        raise LabError(
            f"{origin} is not inside a checkout of Triton Serving Labs",
            "labctl works on a checkout of the labs, and looks for one in the current folder and those above it",
            "cd into your clone, or set LABS_ROOT to it",
        )

    @property
    def labs(self) -> Path:
        return self.root / "labs"

    @property
    def model_repos(self) -> Path:
        return self.root / "model_repos"

    def templates(self, lab: str, folder: str) -> Path:
        """A folder of model templates: ``./x`` is the lab's own, another stands in ``model_repos``."""
        return self.labs / lab / folder if folder.startswith("./") else self.model_repos / folder

    @property
    def models(self) -> Path:
        return self.root / "models"

    @property
    def scripts(self) -> Path:
        return self.root / "scripts"

    @property
    def state(self) -> Path:
        return self.root / ".labs"

    @property
    def backends_cache(self) -> Path:
        """Backend folders for Triton's wheel, one per wheel and Python."""
        return self.cache / "triton"

    @property
    def templates_cache(self) -> Path:
        """Model templates copied out of the images that serve them, one folder per release."""
        return self.cache / "templates"

    def folder(self, stack: str) -> StackFolder:
        """State, log, rendered repository and run folder of one stack."""
        return StackFolder(self.state / stack)

    def folders(self) -> list[StackFolder]:
        """The folders of the stacks that were ever brought up here; a link is none of them."""
        paths = (path for path in self.state.glob("*") if path.is_dir() and not path.is_symlink())
        return [StackFolder(path) for path in sorted(paths)]

    def results_dir(self, lab: str) -> Path:
        return self.root / "results" / lab


@contextmanager
def replace_dir(target: Path) -> Iterator[Path]:
    """Yield an empty sibling folder that takes the place of ``target`` on success and vanishes on failure.

    The old folder stays whole until the new one is complete; a reader sees either the one or the other (see ``_swap``).
    Everybody may read what is in it: a server in a container may be nobody.
    """
    with disk_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        with unfinished.making(target) as fresh:
            fresh.chmod(0o755)
            yield fresh
            for path in fresh.rglob("*"):  # some libraries make files that are their owner's alone
                mode = path.lstat().st_mode
                wanted = mode | (0o755 if path.is_dir() else 0o444)
                if mode != wanted and not path.is_symlink():
                    path.chmod(wanted)
            _swap(fresh, target)


def _swap(fresh: Path, target: Path) -> None:
    """Put ``fresh`` where ``target`` is; what was there goes only after the new one stands.

    Both change places in one step. A file system that cannot do that (some network file systems) takes two renames,
    and between them a reader sees neither. Another process may do the same at the same time: whoever is later wins, and
    neither fails.
    """
    while True:
        try:
            fresh.rename(target)
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        if _exchange(fresh, target):
            return  # what was there has the name of ``fresh`` now, and goes with its maker's block
        old = unfinished.aside(target)
        try:
            target.rename(old)  # an empty folder may be renamed over
        except FileNotFoundError:
            old.rmdir()
            continue
        try:
            fresh.rename(target)
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                old.rename(target)
                raise
        finally:
            if target.exists():
                shutil.rmtree(old, ignore_errors=True)


def _exchange(one: Path, other: Path) -> bool:
    """Whether two folders have changed places in one step."""
    import ctypes

    rename = getattr(ctypes.CDLL(None), "renameat2", None)  # not in every libc
    paths = (AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other))
    return rename is not None and rename(*paths, RENAME_EXCHANGE) == 0


@contextmanager
def key_lock(path: Path, timeout: float = -1) -> Iterator[None]:
    """Hold the lock of one key, across processes; the kernel frees it when its holder dies.

    Args:
        path: what the lock protects; the lock file stands beside it.
        timeout: seconds to wait; negative waits for ever.
    """
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path.parent / f".{path.name}.lock")
    try:
        lock.acquire(timeout=timeout)
    except Timeout as error:
        raise LabError(f"{path} is being made by another process", "", "wait for it, then try again") from error
    try:
        yield
    finally:
        lock.release()
