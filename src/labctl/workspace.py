"""Every path the program writes, under one root, and the few ways in which it writes.

Three rules hold for all of them: a file appears whole or not at all (temporary name, then rename), a folder is
swapped in one rename, and whatever is made once per key is made under that key's lock.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from labctl import unfinished
from labctl.errors import LabError

INSTALLED_FROM = Path(__file__).resolve().parents[2]  # a checkout, where labctl is installed editable
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
        origin = Path(asked or Path.cwd()).absolute()
        cache = Path(os.environ.get("LABS_CACHE") or Path.home() / ".cache" / "triton-labs").expanduser().absolute()
        for folder in (origin, *origin.parents, *([] if asked else [INSTALLED_FROM])):
            if (folder / "pyproject.toml").is_file() and (folder / MARKER).is_dir():
                return cls(folder, cache)
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
    def weights_cache(self) -> Path:
        return self.cache / "weights"

    @property
    def engines_cache(self) -> Path:
        return self.cache / "engines"

    @property
    def backends_cache(self) -> Path:
        """Backend folders for Triton's wheel, one per wheel and Python."""
        return self.cache / "triton"

    @property
    def templates_cache(self) -> Path:
        """Model templates copied out of the images that serve them, one folder per release."""
        return self.cache / "templates"

    def stack_dir(self, stack: str) -> Path:
        """State, log, rendered repository and run folder of one stack."""
        return self.state / stack

    def repository_dir(self, stack: str) -> Path:
        return self.stack_dir(stack) / "repository"

    def run_dir(self, stack: str, replica: int = 0) -> Path:
        """What the server itself writes (step logs): the one writable mount of a container.

        A replica writes into a folder of its own in it; 0 is the stack's.
        """
        folder = self.stack_dir(stack) / "run"
        return folder / f"replica-{replica}" if replica else folder

    def log_file(self, stack: str, replica: int = 0) -> Path:
        """Of the server and its guard; where there are replicas, of the balancer, and one of each replica."""
        return self.stack_dir(stack) / (f"server-{replica}.log" if replica else "server.log")

    def front_dir(self, stack: str) -> Path:
        """Where a balancer reads which servers it has."""
        return self.stack_dir(stack) / "front"

    def ended_file(self, stack: str, replica: int = 0) -> Path:
        """How the server died, told by its keeper (local runtime)."""
        return self.stack_dir(stack) / (f"ended-{replica}.json" if replica else "ended.json")

    def ended_files(self, stack: str) -> list[Path]:
        """Those of a stack's replicas."""
        return sorted(self.stack_dir(stack).glob("ended-*.json"))

    def replica_logs(self, stack: str) -> list[Path]:
        return sorted(self.stack_dir(stack).glob("server-*.log"))

    def results_dir(self, lab: str) -> Path:
        return self.root / "results" / lab


def require_own(path: Path, kind: str) -> None:
    """Refuse what stands where a "file" or a "folder" of ours is to be and is something else.

    Raises:
        LabError: it is a link, of another kind, or somebody else's; nothing is touched.
    """
    try:
        status = path.lstat()
    except FileNotFoundError:
        return
    except NotADirectoryError:
        return  # what it lies in is named
    right = stat.S_ISDIR if kind == "folder" else stat.S_ISREG
    if stat.S_ISLNK(status.st_mode):
        why = "it is a link, and labctl follows none there"
    elif not right(status.st_mode):
        why = f"it is no {kind}"
    elif kind == "file" and status.st_uid != os.getuid():  # a server in a container may own its run folder
        why = f"it belongs to another user ({status.st_uid})"
    else:
        return
    raise LabError(f"{path} cannot be used", why, f"see what it is, then remove it: rm -r {path}")


MAKE_ROOM = "free some space there, or set LABS_CACHE (weights, engines) to a folder on another disk"


@contextmanager
def disk_errors(target: Path) -> Iterator[None]:
    """Turn a full, read-only or forbidden disk into a :class:`LabError` that names the path and the space left."""
    try:
        yield
    except OSError as error:
        free = free_bytes(target)
        why = f"{(error.strerror or str(error)).lower()} ({_megabytes(free)} MB free on that disk)"
        raise LabError(f"cannot write {target}", why, MAKE_ROOM) from error


def need_space(where: Path, needed: int) -> None:
    """Refuse early what cannot end well: ``needed`` bytes (about) are going to be written to ``where``.

    Raises:
        LabError: with the space needed and the space there is.
    """
    free = free_bytes(where)
    if free < needed:
        raise LabError(
            f"no space left to write {where}",
            f"about {_megabytes(needed)} MB are needed, {_megabytes(free)} MB are free on that disk",
            MAKE_ROOM,
        )


def free_bytes(path: Path) -> int:
    """Bytes free on the disk of ``path``, which itself may not be there yet, or be replaced just now."""
    return shutil.disk_usage(next(place for place in path.absolute().parents if place.exists())).free


def _megabytes(count: int) -> str:
    return f"{count / 1e6:,.1f}" if count < 1e8 else f"{count / 1e6:,.0f}"


def atomic_write(path: Path, content: str | bytes, mode: int = 0o644) -> None:
    """Write ``path`` whole or not at all; its folder is made if need be."""
    data = content.encode() if isinstance(content, str) else content
    temporary: Path | None = None
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as stream:
                temporary = Path(stream.name)
                stream.write(data)
            temporary.chmod(mode)
            temporary.replace(path)
        except BaseException:
            if temporary:
                temporary.unlink(missing_ok=True)
            raise


@contextmanager
def replace_dir(target: Path) -> Iterator[Path]:
    """Yield an empty sibling folder that takes the place of ``target`` on success and vanishes on failure.

    The old folder stays whole until the new one is complete; a reader sees either the one or the other. Everybody may
    read what is in it: a server in a container may be nobody.
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

    Another process may do the same at the same time: whoever is later wins, and neither fails.
    """
    while True:
        try:
            fresh.rename(target)
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
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
