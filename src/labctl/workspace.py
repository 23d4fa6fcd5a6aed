"""Every path that labctl writes, under one root."""

from __future__ import annotations

import functools
import hashlib
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from labkit.disk import cache_folder, disk_errors, read_text, resolve_path
from labkit.errors import LabError

INSTALLED_FROM = Path(__file__).resolve().parents[2]  # a checkout, where labctl is installed editable
RUNTIMES = ("local", "compose")
MARKER = "model_repos"  # a folder that only a checkout of the labs has beside pyproject.toml


def is_checkout(folder: Path) -> bool:
    """Whether a folder is the root of a checkout. False for a folder that cannot be opened."""
    try:
        return (folder / "pyproject.toml").is_file() and (folder / MARKER).is_dir()
    except (OSError, ValueError):
        return False


class StackFolder:
    """The paths of one stack. They need not exist.

    Attributes:
        lock: names the command that holds it.
        state_file: the record of the stack that was up last, and the process groups of its parts (local runtime).
        secret: by which Triton knows labctl (labctl.triton.arguments).
        repository: the rendered model repository, which the server reads.
        front: the files from which Envoy reads its servers.
        envoy_file: Envoy's configuration (local runtime).
        env_file: for ``docker compose --env-file``: the project, its files, their variables.
        compose_file: what the stack adds to the checkout's Compose files.
        door_url: the address of the OpenAI API that goes with the stack.
        scale_log: the decisions of ``labctl scale --auto``.
        overlay: of the stack that exercises are checked on: the learner's files, laid over the lab's templates.
        purpose_file: what that stack's server was brought up for.
        clean_file: says that no model of it holds anything of a failed check.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.name = path, path.name
        self.lock, self.state_file, self.secret = path / "lock", path / "state.json", path / "secret"
        self.repository = path / "repository"
        self.front, self.envoy_file = path / "front", path / "envoy.json"
        self.env_file, self.compose_file = path / "compose.env", path / "compose.json"
        self.door_url, self.scale_log = path / "openai.url", path / "scale.log"
        self.overlay, self.purpose_file, self.clean_file = path / "overlay", path / "purpose.json", path / "clean"

    @property
    def was_up(self) -> bool:
        """Whether the stack was brought up and not taken down, as far as its state file tells."""
        return os.path.lexists(self.state_file)

    def run_dir(self, replica: int | None = None) -> Path:
        """What the server itself writes (step logs): the one writable mount of a container.

        A replica writes into a folder of its own in it.
        """
        folder = self.path / "run"
        return folder / f"replica-{replica}" if replica else folder

    def log_file(self, replica: int | None = None) -> Path:
        """The log of the server and of Envoy before it; where there are replicas, Envoy's, and one of each replica."""
        return self.path / (f"server-{replica}.log" if replica else "server.log")

    @property
    def replica_logs(self) -> list[Path]:
        return sorted(self.path.glob("server-*.log"))

    def ended_file(self, replica: int | None = None) -> Path:
        """How the server ended: the exit status that its shell saw (local runtime)."""
        return self.path / (f"ended-{replica}" if replica else "ended")

    @property
    def ended_files(self) -> list[Path]:
        """The ended files of the stack's replicas."""
        return sorted(self.path.glob("ended-*[0-9]"))

    def address_file(self, page: str) -> Path:
        """Where one of the stack's pages (chat, watch) listens."""
        return self.path / f"{page}.address"

    def hub_token(self) -> Path:
        """The pipe through which this process gives a builder's container the Hub token."""
        return self.path / f"hub-token-{os.getpid()}"

    def make_secret(self) -> str:
        """Write and return a new secret for a server that is about to start. The old one is void."""
        with disk_errors(self.secret):
            self.path.mkdir(parents=True, exist_ok=True)
            self.secret.unlink(missing_ok=True)
            text = secrets.token_urlsafe(24)
            with os.fdopen(os.open(self.secret, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as stream:
                stream.write(text)
        return text

    def read_secret(self) -> str | None:
        """Read the running server's secret; None if there is none, or another user owns it."""
        with suppress(OSError, ValueError):
            return read_text(self.secret)
        return None


@dataclass(frozen=True)
class Workspace:
    """A checkout and the cache it shares with other clones.

    Both are resolved paths, because one folder may have several names (links, ``..``). Labels of stacks, names of
    Compose projects and of shared memory, and locks are made from them.

    Attributes:
        models: the tiny trained models that are shipped.
        backends_cache: backend folders for Triton's wheel, one per wheel and Python.
        templates_cache: model templates copied out of the images that serve them, one folder per release.
    """

    root: Path
    cache: Path
    labs: Path = field(init=False)
    model_repos: Path = field(init=False)
    state: Path = field(init=False)
    models: Path = field(init=False)
    backends_cache: Path = field(init=False)
    templates_cache: Path = field(init=False)

    def __post_init__(self) -> None:
        root, cache = resolve_path(self.root), resolve_path(self.cache)
        paths = {"root": root, "cache": cache, "labs": root / "labs", "model_repos": root / "model_repos"}
        paths |= {"state": root / ".labs", "models": root / "labs" / "shared" / "models"}
        paths |= {"backends_cache": cache / "triton", "templates_cache": cache / "templates"}
        for name, path in paths.items():
            object.__setattr__(self, name, path)

    @classmethod
    def find(cls, start: Path | None = None) -> Workspace:
        """The checkout that contains ``start`` (default: ``LABS_ROOT``, else the current folder).

        If the current folder is in no checkout: the one that labctl is installed from (``make setup``).

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
                return cls(_require_text(folder), _require_text(cache_folder()))
        raise LabError(
            f"{origin} is not inside a checkout of Triton Serving Labs",
            "labctl works on a checkout of the labs, and looks for one in the current folder and those above it",
            "cd into your clone, or set LABS_ROOT to it",
            code="checkout-missing",
        )

    def templates(self, lab: str, folder: str) -> Path:
        """A folder of model templates: ``./x`` is the lab's own, another stands in ``model_repos``."""
        return self.labs / lab / folder if folder.startswith("./") else self.model_repos / folder

    def folder(self, stack: str) -> StackFolder:
        """State, log, rendered repository and run folder of one stack."""
        return StackFolder(self.state / stack)

    def folders(self) -> list[StackFolder]:
        """The folders of the stacks that were ever brought up here."""
        return [StackFolder(path) for path in sorted(self.state.glob("*")) if path.is_dir()]

    def results_dir(self, lab: str) -> Path:
        return self.root / "results" / lab


def _require_text(folder: Path) -> Path:
    """The same folder. Raises LabError: its path is not UTF-8, as Triton, Compose and our own files take it."""
    try:
        str(folder).encode()
    except UnicodeEncodeError as error:
        remedy = "move the folder, or name another one (LABS_CACHE: weights and engines)"
        raise LabError(f"the path {folder} is not UTF-8", "", remedy, code="path-not-text") from error
    return folder


@contextmanager
def key_lock(path: Path, timeout: float | None = None) -> Iterator[None]:
    """Hold the lock of one key, across processes; the kernel frees it when its holder dies.

    Args:
        path: what the lock protects; the lock file stands beside it.
        timeout: seconds to wait; None waits for ever.
    """
    from filelock import FileLock, Timeout  # 40 ms, for a command that makes something

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
    """The hash of a file (hex). A process reads an unchanged file once."""
    now = path.stat()
    return _sha256(path, now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns)


@functools.lru_cache(maxsize=256)
def _sha256(path: Path, *_: int) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
