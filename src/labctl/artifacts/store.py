"""The store of artifacts: each is made once under a lock, swapped in whole, and checked before every use.

An artifact's folder is named by its key. Its manifest (JSON) is written last, with the size, hash and modification time
of every file. Before use the sizes are compared, and the hash of each file that was touched since.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from labbuild.protocol import Builder, Facts, Tell
from labctl.workspace import Workspace, key_lock, sha256
from labkit.disk import atomic_write, replace_dir
from labkit.errors import LabError

PARTIAL = ".partial"  # how the name of an interrupted download's folder ends
NUL = "\0"  # between the inputs of a key
Files = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Store:
    """The cached artifacts of one kind.

    Attributes:
        name: the kind's folder in the cache, and the group of commands that list and prune it.
        manifest: the name of the manifest in each artifact's folder.
        label: the manifest's entry that names an artifact to people.
        shown: more entries that a list shows, with the value shown if there is no manifest.
    """

    name: str
    manifest: str
    label: str
    shown: Mapping[str, Any] = field(default_factory=dict)

    def folder(self, workspace: Workspace) -> Path:
        return workspace.cache / self.name

    def remedy(self, name: str) -> str:
        return f"labctl {self.name} prune {name}, then try again"

    def read(self, path: Path) -> dict[str, Any]:
        """The manifest in the folder ``path``. Raises LabError if it cannot be read or lists no files."""
        manifest = path / self.manifest
        try:
            data: dict[str, Any] = json.loads(manifest.read_text(encoding="utf-8"))
            if isinstance(data["files"], dict):
                return data
        except (OSError, ValueError, KeyError, TypeError):
            pass
        raise LabError(f"{manifest} is damaged", "it cannot be read", self.remedy(path.name), code="artifact-damaged")

    def check(self, path: Path, name: str) -> dict[str, Any]:
        """The manifest in a folder. Raises LabError for the first file that is missing or not as it was written."""
        data = self.read(path)
        for file, entry in data["files"].items():
            if why := _difference(path / file, entry):
                raise LabError(f"{path / file} is damaged", why, self.remedy(name), code="artifact-damaged")
        return data

    def rows(self, workspace: Workspace) -> list[dict[str, Any]]:
        """The cached artifacts, one row for each folder, as ``list --json`` prints them.

        ``state`` is whole, damaged (no manifest that can be read) or partial (an interrupted download); the latter two
        have their folder's name as label. ``bytes`` is the size of all files, ``made`` seconds since the epoch.
        """
        folders = sorted(path for path in self.folder(workspace).glob("*") if path.is_dir())
        # A hidden folder is being made, unless it is an interrupted download.
        return [self._row(path) for path in folders if not path.name.startswith(".") or path.name.endswith(PARTIAL)]

    def _row(self, folder: Path) -> dict[str, Any]:
        data: dict[str, Any] = {}
        with contextlib.suppress(LabError):
            data = self.read(folder)
        return {
            self.label: str(data.get(self.label) or folder.name.removeprefix(".")),
            "state": "whole" if data else "partial" if folder.name.endswith(PARTIAL) else "damaged",
            "path": str(folder),
            **{key: data.get(key, default) for key, default in self.shown.items()},
            "bytes": folder_bytes(folder),
            "made": data.get("made") or folder.stat().st_mtime,
        }

    def prune(self, workspace: Workspace, names: Collection[str] | None = None) -> list[str]:
        """Remove these labels or folders (None: all); the labels. Raises LabError for one that is not there."""
        rows = self.rows(workspace)
        known = {name for row in rows for name in (row[self.label], Path(row["path"]).name)}
        if unknown := sorted(set(names or ()) - known):
            raise LabError(
                f"not in the cache: {', '.join(unknown)}", "", f"labctl {self.name} list", code="artifact-not-cached"
            )
        gone = []
        for row in rows:
            path = Path(row["path"])
            if names is None or {row[self.label], path.name} & {*names}:
                made_as = path.with_name(path.name.removeprefix(".").removesuffix(PARTIAL))
                with key_lock(made_as, timeout=0):
                    shutil.rmtree(path)
                gone.append(row[self.label])
        return gone


WEIGHTS = Store("weights", "weights.json", "spec")
ENGINES = Store("engines", "manifest.json", "key", {"engine": "damaged", "source": "", "options": {}})


class Artifact(ABC):
    """Something that is made once and kept in the cache: weights or an engine."""

    store: ClassVar[Store]

    @property
    @abstractmethod
    def key(self) -> str:
        """The name of its folder (see :func:`key_of`)."""

    @property
    def label(self) -> str:
        """The name by which people prune it."""
        return self.key

    @property
    @abstractmethod
    def title(self) -> str:
        """What it is, for a person."""

    @property
    @abstractmethod
    def argv(self) -> tuple[str, ...]:
        """The ``python`` arguments that make it in the serving environment."""

    def locate(self, workspace: Workspace) -> Path:
        """The folder where it is, or will be once it is made."""
        return self.store.folder(workspace) / self.key

    def manifest(self, workspace: Workspace) -> dict[str, Any]:
        """Its manifest. Raises LabError if that cannot be read."""
        return self.store.read(self.locate(workspace))

    def ready(self, workspace: Workspace) -> bool:
        """Whether it can be used as it is. Raises LabError for what is damaged: it is not silently made again."""
        path = self.locate(workspace)
        return path.is_dir() and bool(self.store.check(path, self.label))

    def make(self, workspace: Workspace, tell: Tell, builder: Builder | None = None) -> Path:
        """Make it unless it is there, and return its folder; of two processes one makes it and the other waits."""
        path = self.locate(workspace)
        with key_lock(path):
            if self.ready(workspace):
                return path
            with replace_dir(path) as fresh:
                facts = self.write(fresh, workspace, tell, builder)
                tell("hashing")
                files = measure(fresh, self.store.manifest)
                manifest = {"made": time.time(), **facts, "files": files}
                atomic_write(fresh / self.store.manifest, json.dumps(manifest, indent=1))
        return path

    @abstractmethod
    def write(self, fresh: Path, workspace: Workspace, tell: Tell, builder: Builder | None) -> Facts:
        """Write its files into the empty folder ``fresh``; the result goes into the manifest."""


def key_of(label: str, *inputs: str) -> str:
    """The name of an artifact's folder: readable, and another one wherever something that it follows from differs."""
    return f"{label}-{hashlib.sha256(NUL.join(inputs).encode()).hexdigest()[:10]}"


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


def folder_digest(entries: Files) -> str:
    """One hash for the content of a folder."""
    pairs = sorted((name, entry["sha256"]) for name, entry in entries.items())
    return hashlib.sha256(json.dumps(pairs).encode()).hexdigest()


def folder_bytes(folder: Path) -> int:
    """Bytes of all files below a folder, in which files may come and go meanwhile."""
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            total += path.stat().st_size if path.is_file() else 0
    return total


def _difference(path: Path, entry: Mapping[str, Any]) -> str | None:
    """Say how a file differs from what was written; None if it does not."""
    try:
        now = path.stat()
    except OSError:
        return f"it is missing, {entry['size']} bytes were written"
    if now.st_size != entry["size"]:
        return f"it has {now.st_size} bytes, {entry['size']} were written"
    if now.st_mtime_ns != entry["mtime_ns"] and sha256(path) != entry["sha256"]:
        return "its hash is not the one that was written"
    return None
