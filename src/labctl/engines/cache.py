"""The cache of engines: built once per key under a lock, swapped in whole, checked before every use.

The key is made of everything that the engine follows from, so ``locate`` needs no network, no torch and no GPU;
``manifest.json``, written last, also remembers the content of the weights, the builder's versions and the target.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labctl import unfinished, weights
from labctl.engines.protocol import Builder, Engine, Tell
from labctl.errors import LabError
from labctl.weights import Source, files
from labctl.workspace import Workspace, atomic_write, key_lock, replace_dir

MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Build:
    """One engine of one model: where it is, whether it is whole, how it is made."""

    engine: Engine
    source: Source
    options: Mapping[str, Any]

    @property
    def key(self) -> str:
        """The folder's name: readable, and another one for every other input."""
        inputs = [self.engine.name, self.engine.recipe, self.source.key, dict(self.options)]
        digest = hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()[:10]
        return f"{self.engine.name}-{self.source.key[:60]}-{digest}"

    @property
    def argv(self) -> tuple[str, ...]:
        """The ``python`` arguments that make it in the serving environment."""
        options = [text for key, value in self.options.items() for text in ("--option", f"{key}={value}")]
        return ("-m", "labctl.engines", "build", self.engine.name, "--weights", self.source.spec, *options)

    def locate(self, workspace: Workspace) -> Path:
        return workspace.engines_cache / self.key

    def manifest(self, workspace: Workspace) -> dict[str, Any]:
        return files.read(self.locate(workspace) / MANIFEST, self._remedy)

    def ready(self, workspace: Workspace) -> bool:
        """True if it can be served as it is; False if it is not built, or built from weights that have changed since.

        Raises:
            LabError: it is there but truncated, changed, or not this engine.
        """
        path = self.locate(workspace)
        if not path.is_dir():
            return False
        manifest = self.manifest(workspace)
        if manifest.get("key") != self.key:
            why = f"its manifest is that of {manifest.get('key', 'no engine of ours')}"
            raise LabError(f"{path} is not this engine", why, self._remedy)
        for pattern in self.engine.essential:
            if not any(Path(name).match(pattern) for name in manifest["files"]):
                raise LabError(f"{path} is no {self.engine.name} engine", f"it has no {pattern}", self._remedy)
        files.check(path, manifest["files"], self._remedy)
        if not weights.ready(self.source, workspace):
            return True  # the weights were pruned: what was compiled from them is still good
        return bool(manifest["weights"] == weights.identity(self.source, workspace))

    def make(self, workspace: Workspace, tell: Tell, builder: Builder | None = None) -> Path:
        """Build it unless it is there; of two processes one builds and the other waits.

        Args:
            builder: the serving image (for engines that are built in it).

        Raises:
            LabError: the weights cannot be had or the engine not built; nothing is left that looks like one.
        """
        path = self.locate(workspace)
        model = weights.pull(self.source, workspace, tell)
        with key_lock(path):
            if not self.ready(workspace):
                unfinished.sweep([path.parent])
                with replace_dir(path) as fresh:
                    began = time.monotonic()
                    made = self.engine.make(model.path, self.options, fresh, tell, builder)
                    tell("hashing")
                    manifest = {
                        "key": self.key,
                        "engine": self.engine.name,
                        "source": self.source.spec,
                        "weights": weights.identity(self.source, workspace),
                        "options": dict(self.options),
                        "made": time.time(),
                        "build_s": round(time.monotonic() - began, 2),
                        **made,
                        "files": files.measure(fresh, MANIFEST),
                    }
                    self._complete(manifest["files"])
                    atomic_write(fresh / MANIFEST, json.dumps(manifest, indent=1))
        return path

    def _complete(self, entries: Mapping[str, Any]) -> None:
        for pattern in self.engine.essential:
            if not any(Path(name).match(pattern) and entry["size"] for name, entry in entries.items()):
                raise LabError(f"the {self.engine.name} builder ended without an engine", f"there is no {pattern}")

    @property
    def _remedy(self) -> str:
        return f"labctl engines prune {self.key}, then try again"


def list_cached(workspace: Workspace) -> list[dict[str, Any]]:
    """What the cache holds: key, engine, source, options, path, bytes, when it was made (seconds since the epoch)."""
    rows = []
    for manifest in sorted(workspace.engines_cache.glob(f"[!.]*/{MANIFEST}")):
        try:
            data = files.read(manifest, "")
        except LabError:
            data = {"engine": "damaged", "source": "", "options": {}, "files": {}, "made": manifest.stat().st_mtime}
        row = {"key": manifest.parent.name, "path": str(manifest.parent)}
        row |= {name: data[name] for name in ("engine", "source", "options", "made")}
        rows.append(row | {"bytes": sum(entry["size"] for entry in data["files"].values())})
    return rows


def prune(workspace: Workspace, keep: Sequence[str] = ()) -> list[str]:
    """Remove cached engines but those whose keys are in ``keep``; the keys that went."""
    gone = []
    for row in list_cached(workspace):
        if row["key"] not in keep:
            path = Path(row["path"])
            with key_lock(path):
                shutil.rmtree(path)
            gone.append(row["key"])
    return gone
