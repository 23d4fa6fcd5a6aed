"""Every path that labctl writes, under one root.

What is below a stack's ``run_dir`` may have been put there by a model, so it is opened without following links
(``nofollow``). All the rest of a stack's folder is the caller's own, and ``require_own`` refuses anything else before
it is changed.
"""

from __future__ import annotations

import functools
import hashlib
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from labkit.disk import atomic_write, cache_folder, disk_errors, resolve_path
from labkit.errors import LabError
from labkit.nofollow import read_text, require_own

INSTALLED_FROM = Path(__file__).resolve().parents[2]  # a checkout, where labctl is installed editable
RUNTIMES = ("compose", "local")
MARKER = "model_repos"  # a folder that only a checkout of the labs has beside pyproject.toml


def is_checkout(folder: Path) -> bool:
    """Whether a folder is the root of a checkout; one that cannot be looked into is none."""
    try:
        return (folder / "pyproject.toml").is_file() and (folder / MARKER).is_dir()
    except (OSError, ValueError):
        return False


class _In:
    """A path by its name, below a folder of its owner's; ``kind`` (file or folder) is what may be there."""

    def __init__(self, folder: str, name: str, kind: str = "file") -> None:
        self.folder, self.name, self.kind = folder, name, kind

    def __get__(self, owner: StackFolder | Workspace, kind: type) -> Path:
        folder: Path = getattr(owner, self.folder)
        return folder / self.name


@dataclass(frozen=True)
class StackFolder:
    """The paths of one stack; none of them need exist."""

    path: Path

    lock, lock_note = _In("path", "lock"), _In("path", "lock.json")  # the second says who holds it
    state_file = _In("path", "state.json")  # the record of the stack that was up last: a memory, never the proof
    secret = _In("path", "secret")  # by which Triton tells labctl from a stranger (labctl.triton.arguments)
    token = _In("path", "token")  # that other machines need (docs/operate/security.md)
    repository = _In("path", "repository", "folder")  # as rendered; the server reads it
    front = _In("path", "front", "folder")  # from which a balancer reads its servers
    envoy_file = _In("path", "envoy.json")  # Envoy's configuration (local runtime)
    env_file = _In("path", "compose.env")  # for docker compose --env-file: the project, its files, their variables
    compose_file = _In("path", "compose.json")  # what the stack has otherwise than the checkout's Compose files
    observe = _In("path", "observe", "folder")  # it holds a password: gone with the stack
    door_url = _In("path", "openai.url")  # of the OpenAI API that goes with the stack
    scale_log = _In("path", "scale.log")  # the decisions of `labctl scale --auto`
    # Of the exercises' own stack: the learner's files, as a repository over the lab's; the runtime that was asked for
    # last; what the server was brought up for; touched at every check, with the watcher that ends the server when it
    # is old, and that watcher's log; there while the models hold nothing of an earlier check that failed.
    overlay, asked_runtime = _In("path", "overlay", "folder"), _In("path", "runtime")
    purpose_file, used_file = _In("path", "purpose.json"), _In("path", "used")
    idle_log, clean_file = _In("path", "idle.log"), _In("path", "clean")

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def was_up(self) -> bool:
        """Whether the stack was brought up and not taken down, as far as its state file tells."""
        return os.path.lexists(self.state_file)

    def run_dir(self, replica: int = 0) -> Path:
        """What the server itself writes (step logs): the one writable mount of a container.

        A replica writes into a folder of its own in it; 0 is the stack's.
        """
        folder = self.path / "run"
        return folder / f"replica-{replica}" if replica else folder

    def log_file(self, replica: int = 0) -> Path:
        """The log of the server and of Envoy before it; where there are replicas, Envoy's, and one of each replica."""
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

    def address_file(self, page: str) -> Path:
        """Where one of the stack's pages (chat, watch) listens."""
        return self.path / f"{page}.address"

    def hub_token(self) -> Path:
        """The pipe through which this process gives a builder's container the Hub token."""
        return self.path / f"hub-token-{os.getpid()}"

    def make_secret(self) -> str:
        """A new secret for a server that is about to start; the old one is worth nothing any more."""
        return self._new(self.secret, secrets.token_urlsafe(24))

    def read_secret(self) -> str:
        """The running server's secret; "" where there is none, or another user's."""
        return _content(self.secret)

    def make_token(self, text: str = "") -> str:
        """A new token for clients on other machines, or ``text`` again, which was the stack's."""
        return self._new(self.token, text or secrets.token_urlsafe(32))

    def read_token(self) -> str:
        """The stack's token; "" where it has none."""
        return _content(self.token)

    def _new(self, path: Path, text: str) -> str:
        with disk_errors(path):
            self.path.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as stream:
                stream.write(text)
        return text

    def require_own(self) -> None:
        """Refuse a folder in which something is not the caller's own file or folder.

        Raises LabError: a link, a FIFO, a folder in a file's place, or another user's file; it is named, and
        nothing is touched.
        """
        for path in (self.path.parent, self.path, self.run_dir()):
            require_own(path, "folder")
        for own in vars(StackFolder).values():
            if isinstance(own, _In) and own.name not in ("secret", "token"):  # a container's user may own them
                require_own(self.path / own.name, own.kind)
        for path in (self.log_file(), *self.replica_logs):
            require_own(path, "file")
        for path in self.path.iterdir() if self.path.is_dir() else ():
            require_own(path, "")


def _content(path: Path) -> str:
    try:
        return read_text(path)
    except (OSError, ValueError):
        return ""


@dataclass(frozen=True)
class Workspace:
    """A checkout and the cache it shares with other clones.

    Both are kept as their resolved paths: the marks by which a stack is found again, names of Compose projects and of
    shared memory, and locks are made from them, and one folder may be called by several names (links, ``..``).

    Attributes:
        backends_cache: backend folders for Triton's wheel, one per wheel and Python.
        templates_cache: model templates copied out of the images that serve them, one folder per release.
    """

    root: Path
    cache: Path

    labs, model_repos, state = (_In("root", name) for name in ("labs", "model_repos", ".labs"))
    models, extras = (_In("labs", name) for name in ("shared/models", "extras"))
    observe = _In("root", "docker/observe")  # of Prometheus and Grafana
    runtime_file = _In("state", "runtime")  # which runtime `--runtime auto` is: a line that a person may write too
    backends_cache, templates_cache = _In("cache", "triton"), _In("cache", "templates")

    def __post_init__(self) -> None:
        for name in ("root", "cache"):
            object.__setattr__(self, name, resolve_path(getattr(self, name)))

    @classmethod
    def find(cls, start: Path | None = None) -> Workspace:
        """The checkout that contains ``start`` (default: ``LABS_ROOT``, else the current folder).

        Where the current folder is in none, it is the checkout that labctl is installed from (``make setup``).

        Raises LabError: none of these is a checkout.
        """
        asked = os.environ.get("LABS_ROOT") or start
        try:
            origin = resolve_path(Path(asked or Path.cwd()))
        except FileNotFoundError:
            raise LabError(
                "the current folder does not exist any more", "it was deleted", "cd into your clone", code="folder-gone"
            ) from None
        for folder in (origin, *origin.parents, *([] if asked else [INSTALLED_FROM])):
            if is_checkout(folder):
                return cls(folder, cache_folder())
        raise LabError(
            f"{origin} is not inside a checkout of Triton Serving Labs",
            "labctl works on a checkout of the labs, and looks for one in the current folder and those above it",
            "cd into your clone, or set LABS_ROOT to it; labctl new DIR makes a folder of the labs without git",
            code="checkout-missing",
        )

    def templates(self, lab: str, folder: str) -> Path:
        """A folder of model templates: ``./x`` is the lab's own, another stands in ``model_repos``."""
        return self.labs / lab / folder if folder.startswith("./") else self.model_repos / folder

    @property
    def settled_runtime(self) -> str:
        """What ``--runtime auto`` means in this checkout: "compose" or "local"; "" where nobody has settled it."""
        name = _content(self.runtime_file).strip()
        return name if name in RUNTIMES else ""

    def settle_runtime(self, name: str) -> None:
        """Have ``--runtime auto`` mean that runtime; "" leaves it open again."""
        with disk_errors(self.runtime_file):
            if name:
                atomic_write(self.runtime_file, f"{name}\n")
            else:
                self.runtime_file.unlink(missing_ok=True)

    @property
    def caches(self) -> list[Path]:
        """Every folder of the cache in which something is made."""
        return [self.cache / "weights", self.cache / "engines", self.templates_cache, self.backends_cache]

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
        raise LabError(
            f"{path} is being made by another process", "", "wait for it, then try again", code="artifact-busy"
        ) from error
    try:
        yield
    finally:
        lock.release()


def sha256(path: Path) -> str:
    """Hash of a file (hex). A file that has not been touched since is not read again by the same process."""
    now = path.stat()
    return _sha256(path, now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns)


@functools.lru_cache(maxsize=256)
def _sha256(path: Path, *_: int) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
