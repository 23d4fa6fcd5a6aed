"""Read small files, write whole files and folders, and say the faults of a disk: the folder, the cause, what to do."""

from __future__ import annotations

import errno
import os
import pwd
import shutil
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from labkit.errors import LabError
from labsched.log.files import json_object, open_to_read

FULL = {errno.ENOSPC: "no space left on that disk", errno.EDQUOT: "the disk quota is used up"}
FORBIDDEN = (errno.EACCES, errno.EPERM)
LONGEST_SHOWN = 200  # characters of a path
MOST_JSON = 16 * 2**20  # bytes; none of our small files comes near
FAULTS = (*FULL, *FORBIDDEN, errno.EROFS)


def resolve_path(path: Path) -> Path:
    """The one name of a place that may have several: absolute, without links and ``..``. It need not exist.

    Raises FileNotFoundError: the path is relative, and the current folder was deleted.
    """
    return Path(os.path.realpath(path))  # Path.resolve raises RuntimeError where links lead in a circle


def typed_path(text: str) -> Path:
    """The place that a person typed, with ``~`` in the place of their home folder, resolved."""
    path = Path(text)
    with suppress(RuntimeError):  # no such user, or no home: a folder is called so
        path = path.expanduser()
    return resolve_path(path)


def cache_folder() -> Path:
    """The cache that all clones share: ``LABS_CACHE``, or a folder in the home folder."""
    try:
        home = Path.home()
    except RuntimeError:  # no HOME, and a user without one
        home = Path("/tmp")
    return typed_path(os.environ.get("LABS_CACHE") or str(home / ".cache" / "triton-labs"))


@contextmanager
def disk_errors(target: Path) -> Iterator[None]:
    """Turn what the disk of ``target`` refuses into a :class:`LabError`; other errors of the block pass through."""
    try:
        yield
    except OSError as error:
        if not _concerns(error, target):
            raise
        raise describe_fault(error, target) from error


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
                os.fchmod(stream.fileno(), mode)
            temporary.replace(path)
        except BaseException:
            if temporary:
                temporary.unlink(missing_ok=True)
            raise


@contextmanager
def replace_dir(target: Path) -> Iterator[Path]:
    """Yield an empty folder that takes the place of ``target`` at the end of the block, if the block succeeds.

    Until then the old one stays whole. Of each folder there is one maker at a time: where two commands may meet, they
    hold a lock. What a killed maker has left goes first. Everybody may read what is in it: a server in a container may
    be nobody.
    """
    fresh, former = (target.with_name(f".{target.name}.{what}") for what in ("new", "old"))
    with disk_errors(target):
        _remove_folders(fresh, former)
        fresh.mkdir(parents=True)
        try:
            yield fresh
            for path in fresh.rglob("*"):  # some libraries make files that are their owner's alone
                mode = path.lstat().st_mode
                readable = mode | (0o755 if path.is_dir() else 0o444)
                if mode != readable and not path.is_symlink():
                    path.chmod(readable)
            fresh.chmod(0o755)
            with suppress(FileNotFoundError):
                target.rename(former)
            fresh.rename(target)
        finally:
            if former.exists() and not target.exists():
                former.rename(target)
            _remove_folders(fresh, former)


def _remove_folders(*folders: Path) -> None:
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def read_text(path: Path) -> str:
    """Read a small file. Raises OSError as :func:`open_to_read` does, ValueError for a large one or no UTF-8."""
    with open_to_read(path) as stream:
        data = stream.read(MOST_JSON + 1)
    if len(data) > MOST_JSON:
        raise ValueError(f"{path} is too large")
    return data.decode()


def read_object(path: Path) -> dict[str, Any]:
    """Read the JSON object in a small file. Raises as :func:`read_text` does, and ValueError for anything else."""
    return json_object(read_text(path))


def _concerns(error: OSError, target: Path) -> bool:
    """Whether it is about that place: a block may also read files elsewhere, and libraries raise OSError for less."""
    if error.errno in FULL:
        return True
    if not isinstance(error.filename, str | os.PathLike):
        return error.errno in FAULTS
    named, place = Path(error.filename).absolute(), target.absolute()
    return named.is_relative_to(place.parent) or place.is_relative_to(named)


def describe_fault(error: OSError, target: Path) -> LabError:
    """The error in words.

    Args:
        target: what was to be written.
    """
    named = Path(error.filename) if isinstance(error.filename, str | os.PathLike) else target
    folder = _existing(named)
    elsewhere = f", or set {_CACHE} to another folder" if cache_folder() in target.absolute().parents else ""
    if error.errno in FULL:
        why = f"{FULL[error.errno]} ({format_bytes(free_bytes(target))} free)"
        remedy = f"free some space there{elsewhere}"
    elif error.errno == errno.EROFS:
        why = f"{folder} is read-only"
        remedy = f"make it writable (mount -o remount,rw){elsewhere}"
    elif error.errno in FORBIDDEN:
        why = f"{_user()} may not write in {folder}"
        remedy = f"see who may: ls -ld {folder}{elsewhere}"
    else:
        why = f"{error.strerror or error}: {named}"
        remedy = f"see what is there: ls -ld {folder}{elsewhere}"
    return LabError(f"cannot write {target}", why, remedy, code="write-failed")


def is_disk_fault(error: OSError) -> bool:
    """Whether a disk refused: it is full, read-only or another user's, or no temporary folder can be written."""
    return error.errno in FAULTS or _no_temporary_folder(error)


def _no_temporary_folder(error: OSError) -> bool:
    if not isinstance(error, FileNotFoundError) or error.filename is not None:
        return False
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and frames[-1].filename == tempfile.__file__


def describe_os_error(error: OSError) -> LabError:
    """Any error that names a file, or is a disk's fault, in words."""
    if _no_temporary_folder(error):  # tempfile tried them all, and keeps each one's reason to itself
        return LabError(
            "no temporary folder can be written",
            f"neither TMPDIR, /tmp, /var/tmp nor {_existing(Path.cwd())}",
            "free some space (df -h), or set TMPDIR to a folder on another disk",
            code="no-temporary-folder",
        )
    place = os.fsdecode(error.filename) if error.filename is not None else str(Path.cwd())
    if error.errno in FAULTS:
        return describe_fault(error, Path(place))
    shown = place if len(place) <= LONGEST_SHOWN else f"{place[:LONGEST_SHOWN]}..."
    return LabError(
        f"{shown} cannot be used",
        error.strerror or type(error).__name__,
        "see what is there: ls -ld",
        code="file-unusable",
    )


_CACHE = "LABS_CACHE (weights, engines)"


def need_space(where: Path, needed: int) -> None:
    """Refuse early what cannot end well: ``needed`` bytes (about) are going to be written to ``where``.

    Raises:
        LabError: with the space needed and the space there is.
    """
    free = free_bytes(where)
    if free < needed:
        cached = cache_folder() in where.absolute().parents
        raise LabError(
            f"no space left to write {where}",
            f"about {format_bytes(needed)} are needed, {format_bytes(free)} are free on that disk",
            "free some space there" + (f", or set {_CACHE} to a folder on another disk" if cached else ""),
            code="disk-too-full",
        )


def free_bytes(path: Path) -> int:
    """Bytes free on the disk of ``path``, which itself may not be there yet, or be replaced just now."""
    return shutil.disk_usage(_existing(path.absolute().parent)).free


def format_bytes(count: int) -> str:
    """A number of bytes with its unit."""
    if count < 1e5:
        return f"{count / 1e3:,.1f} kB"
    return f"{count / 1e6:,.1f} MB" if count < 1e8 else f"{count / 1e6:,.0f} MB"


def _existing(path: Path) -> Path:
    path = path.absolute()
    return next((place for place in (path, *path.parents) if os.path.lexists(place)), path)


def _user() -> str:
    try:
        return f"user {pwd.getpwuid(os.geteuid()).pw_name}"
    except KeyError:
        return f"user {os.geteuid()}"
