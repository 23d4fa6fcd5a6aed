"""The cache of weights: made once under a lock, swapped in whole, and checked before every use.

``weights.json`` is written last, with what ``files`` measures. Shipped models bring a ``SHA256SUMS`` and are small
enough to be hashed every time.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labctl import unfinished
from labctl.errors import LabError
from labctl.weights import files, hub, random_init
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
    files.check(path, _manifest(source, path)["files"], _remedy(source))
    return True


def pull(source: Source, workspace: Workspace, tell: Callable[[str], None]) -> Weights:
    """Make or fetch the weights unless they are there; one process at a time per source.

    Args:
        tell: called with short progress texts.

    Raises:
        LabError: they cannot be had; nothing is left that looks complete.
    """
    path = locate(source, workspace)
    if source.kind in ("shipped", "local"):
        ready(source, workspace)
        return Weights(source.spec, path, files.measure(path, MANIFEST))
    with key_lock(path):
        if ready(source, workspace):
            if source.kind == "hub" and os.environ.get("HF_HUB_OFFLINE", "0").lower() in ("1", "true", "yes", "on"):
                tell("offline: the cached copy is used, without asking the hub")
        else:
            unfinished.sweep([path.parent])
            with replace_dir(path) as fresh:
                revision = source.revision
                if source.kind == "random":
                    random_init.make(source.name, fresh, workspace.models, tell, source.revision)
                else:
                    partial = workspace.weights_cache / f".{source.key}.partial"
                    revision = hub.download(source, fresh, partial, tell)
                tell("hashing")
                manifest = {"spec": source.spec, "revision": revision, "made": time.time()}
                manifest["files"] = files.measure(fresh, MANIFEST)
                atomic_write(fresh / MANIFEST, json.dumps(manifest, indent=1))
    return Weights(source.spec, path, _manifest(source, path)["files"])


def identity(source: Source, workspace: Workspace) -> str:
    """A digest of the content of weights that are there: what is compiled from them remembers it."""
    path = locate(source, workspace)
    if source.kind == "shipped":
        return files.sha256(path / SUMS)
    if source.kind == "local":  # a folder of yours may be large and is not ours to write in: not hashed
        seen = [(p.name, p.stat().st_size, p.stat().st_mtime_ns) for p in sorted(path.iterdir())]
        return hashlib.sha256(json.dumps(seen).encode()).hexdigest()
    return files.digest(_manifest(source, path)["files"])


def vocab_size(source: Source, workspace: Workspace) -> int:
    """How many logits the model gives for each position; -1 (any number, for Triton) while its weights are not here."""
    try:
        config = json.loads((locate(source, workspace) / "config.json").read_text(encoding="utf-8"))
        return int(config["vocab_size"])
    except (OSError, ValueError, KeyError, TypeError):  # what is damaged is told by whoever uses it
        return -1


def list_cached(workspace: Workspace) -> list[dict[str, Any]]:
    """What the cache holds: spec, path, bytes, when it was made (seconds since the epoch).

    A folder whose manifest cannot be read is listed under its own name, so that it can be pruned.
    """
    rows = []
    for manifest in sorted(workspace.weights_cache.glob(f"[!.]*/{MANIFEST}")):
        try:
            data = files.read(manifest, "")
        except LabError:
            data = {"spec": manifest.parent.name, "files": {}, "made": manifest.stat().st_mtime}
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


def _manifest(source: Source, path: Path) -> dict[str, Any]:
    return files.read(path / MANIFEST, f"labctl weights prune {path.name}, then try again")


def _remedy(source: Source) -> str:
    return f"labctl weights prune {source.spec}, then try again"


def _check_shipped(source: Source, path: Path) -> None:
    if not (path / SUMS).is_file():
        names = ", ".join(sorted(p.parent.name for p in path.parent.glob(f"*/{SUMS}")))
        raise LabError(f"no model '{source.name}' is shipped", f"shipped are: {names}")
    for line in (path / SUMS).read_text(encoding="utf-8").splitlines():
        expected, _, name = line.partition("  ")
        if not (path / name).is_file() or files.sha256(path / name) != expected:
            raise LabError(f"{path / name} is damaged", "its hash is not that of SHA256SUMS", f"git checkout -- {path}")


def _check_local(path: Path) -> None:
    if not path.is_dir():
        raise LabError(f"there is no model folder {path}")
    missing = [name for name in ("config.json", "tokenizer.json") if not (path / name).is_file()]
    if not any(next(path.glob(pattern), None) for pattern in WEIGHT_FILES):
        missing.append("model.safetensors")
    if missing:
        raise LabError(f"{path} is not a model in Hugging Face's layout", f"missing: {', '.join(missing)}")
