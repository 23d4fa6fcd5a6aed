"""The cache of weights: made once under a lock, swapped in whole, and checked before every use.

``weights.json`` is written last, with the size and hash of every file. Before use the sizes are compared (fast), the
hashes by ``verify``. Shipped models bring a ``SHA256SUMS`` and are small enough to be hashed every time.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labctl.errors import LabError
from labctl.weights import hub, random_init
from labctl.weights.source import Source, locate
from labctl.workspace import Workspace, atomic_write, key_lock, replace_dir

MANIFEST = "weights.json"
SUMS = "SHA256SUMS"
WEIGHT_FILES = ("*.safetensors", "*.bin")


@dataclass(frozen=True)
class Weights:
    """A folder of weights that is whole. ``files``: name → {"size": bytes, "sha256": hex}."""

    spec: str
    path: Path
    files: dict[str, dict[str, Any]]


def ready(source: Source, workspace: Workspace) -> bool:
    """True if the weights can be used as they are; damaged ones raise instead of being silently made again.

    Raises:
        LabError: the files are there but not whole.
    """
    path = locate(source, workspace)
    if source.kind == "shipped":
        _check_shipped(source, path)
        return True
    if source.kind == "local":
        _check_local(path)
        return True
    if not path.is_dir():
        return False
    _check_sizes(source, path)
    return True


def pull(source: Source, workspace: Workspace, report: Callable[[str], None]) -> Weights:
    """Make or fetch the weights unless they are there; one process at a time per source.

    Args:
        report: called with short progress texts.

    Raises:
        LabError: they cannot be had; nothing is left that looks complete.
    """
    path = locate(source, workspace)
    if source.kind in ("shipped", "local"):
        ready(source, workspace)
        return Weights(source.spec, path, _measure(path))
    with key_lock(path):
        if not ready(source, workspace):
            with replace_dir(path) as fresh:
                if source.kind == "random":
                    random_init.make(source.name, fresh, workspace.models, report)
                else:
                    hub.download(source, fresh, workspace.weights_cache / f".{source.key}.partial", report)
                report("hashing")
                manifest = {"spec": source.spec, "made": time.time(), "files": _measure(fresh)}
                atomic_write(fresh / MANIFEST, json.dumps(manifest, indent=1))
    return Weights(source.spec, path, _manifest(source, path)["files"])


def verify(source: Source, workspace: Workspace) -> None:
    """Compare every hash. Raises LabError for the first file that is not what was written."""
    path = locate(source, workspace)
    if not ready(source, workspace):
        raise LabError(f"{source.spec} is not there yet", "", f"labctl weights pull {source.spec}")
    if source.kind in ("shipped", "local"):
        return
    for name, entry in _manifest(source, path)["files"].items():
        if sha256(path / name) != entry["sha256"]:
            raise _damaged(source, path / name, "its hash is not the one that was written")


def list_cached(workspace: Workspace) -> list[dict[str, Any]]:
    """What the cache holds: spec, path, bytes, when it was made (seconds since the epoch)."""
    rows = []
    for manifest in sorted(workspace.weights_cache.glob(f"*/{MANIFEST}")):
        data = json.loads(manifest.read_text(encoding="utf-8"))
        size = sum(entry["size"] for entry in data["files"].values())
        rows.append({"spec": data["spec"], "path": str(manifest.parent), "bytes": size, "made": data["made"]})
    return rows


def prune(workspace: Workspace, keep: Sequence[str] = ()) -> list[str]:
    """Remove cached weights but those of the specs in ``keep``; the specs that went."""
    gone = []
    for row in list_cached(workspace):
        if row["spec"] not in keep:
            path = Path(row["path"])
            with key_lock(path):
                shutil.rmtree(path)
            gone.append(row["spec"])
    return gone


def sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _measure(folder: Path) -> dict[str, dict[str, Any]]:
    return {
        path.relative_to(folder).as_posix(): {"size": path.stat().st_size, "sha256": sha256(path)}
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != MANIFEST
    }


def _manifest(source: Source, path: Path) -> dict[str, Any]:
    try:
        data: dict[str, Any] = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        return data
    except (OSError, ValueError) as error:
        raise _damaged(source, path / MANIFEST, "it cannot be read") from error


def _check_sizes(source: Source, path: Path) -> None:
    for name, entry in _manifest(source, path)["files"].items():
        file = path / name
        size = file.stat().st_size if file.is_file() else -1
        if size != entry["size"]:
            found = f"it has {size} bytes" if size >= 0 else "it is missing"
            raise _damaged(source, file, f"{found}, {entry['size']} were written")


def _damaged(source: Source, file: Path, why: str) -> LabError:
    return LabError(f"{file} is damaged", why, f"labctl weights prune {source.spec}, then try again")


def _check_shipped(source: Source, path: Path) -> None:
    if not (path / SUMS).is_file():
        names = ", ".join(sorted(p.parent.name for p in path.parent.glob(f"*/{SUMS}")))
        raise LabError(f"no model '{source.name}' is shipped", f"shipped are: {names}")
    for line in (path / SUMS).read_text(encoding="utf-8").splitlines():
        expected, _, name = line.partition("  ")
        if not (path / name).is_file() or sha256(path / name) != expected:
            raise LabError(f"{path / name} is damaged", "its hash is not that of SHA256SUMS", f"git checkout -- {path}")


def _check_local(path: Path) -> None:
    if not path.is_dir():
        raise LabError(f"there is no model folder {path}")
    missing = [name for name in ("config.json", "tokenizer.json") if not (path / name).is_file()]
    if not any(next(path.glob(pattern), None) for pattern in WEIGHT_FILES):
        missing.append("model.safetensors")
    if missing:
        raise LabError(f"{path} is not a model in Hugging Face's layout", f"missing: {', '.join(missing)}")
