"""What a cached folder holds, written down when it is made and compared before every use.

Each cached folder (weights, engines) has one JSON manifest, written last, with the size, hash and modification time
of every file. Before use the sizes are compared, and the hash of each file that was touched since.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from labctl.errors import LabError

Entries = Mapping[str, Mapping[str, Any]]


def sha256(path: Path) -> str:
    """One command asks for the same file several times: what has not been touched since is not read again."""
    now = path.stat()
    return _sha256(path, now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns)


@functools.lru_cache(maxsize=256)
def _sha256(path: Path, *_: int) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def measure(folder: Path, manifest: str) -> dict[str, dict[str, Any]]:
    """Relative name → size (bytes), sha256 (hex), mtime_ns, for every file but the manifest itself."""
    return {
        path.relative_to(folder).as_posix(): {
            "size": path.stat().st_size,
            "sha256": sha256(path),
            "mtime_ns": path.stat().st_mtime_ns,
        }
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != manifest
    }


def digest(entries: Entries) -> str:
    """One hash for the content of a folder."""
    pairs = sorted((name, entry["sha256"]) for name, entry in entries.items())
    return hashlib.sha256(json.dumps(pairs).encode()).hexdigest()


def read(path: Path, remedy: str) -> dict[str, Any]:
    """A manifest, or LabError if it cannot be read or lists no files."""
    try:
        data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(data["files"], dict):
            return data
    except (OSError, ValueError, KeyError, TypeError):
        pass
    raise LabError(f"{path} is damaged", "it cannot be read", remedy)


def check(folder: Path, entries: Entries, remedy: str) -> None:
    """Compare what is there with what was written.

    Raises:
        LabError: the first file that is missing, has another size, or other content.
    """
    for name, entry in entries.items():
        path = folder / name
        try:
            now = path.stat()
        except OSError:
            raise LabError(f"{path} is damaged", f"it is missing, {entry['size']} bytes were written", remedy) from None
        if now.st_size != entry["size"]:
            why = f"it has {now.st_size} bytes, {entry['size']} were written"
            raise LabError(f"{path} is damaged", why, remedy)
        if now.st_mtime_ns != entry["mtime_ns"] and sha256(path) != entry["sha256"]:
            raise LabError(f"{path} is damaged", "its hash is not the one that was written", remedy)
