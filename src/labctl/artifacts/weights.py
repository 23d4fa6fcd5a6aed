"""Model weights: where they come from, where they are, and that they are whole.

A person writes one of four kinds of source::

    hub:<id>[@<revision>]     the model hub, at a pinned revision if one is given
    shipped:<name>            a tiny trained model of this project, in labs/shared/models/
    random:<shape>[@<dtype>]  a real architecture with seeded random weights, for speed work
    <folder>                  a folder of yours in Hugging Face's layout

The cache holds those of the first and the third kind.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

from labbuild import random_weights
from labbuild.protocol import Builder, Facts, Tell
from labctl.artifacts import hub
from labctl.artifacts.store import PARTIAL, WEIGHTS, Artifact, folder_digest, key_of
from labctl.workspace import Workspace, sha256
from labkit.disk import typed_path
from labkit.errors import LabError

SUMS = "SHA256SUMS"  # a shipped model's hashes; it is small enough to be hashed before every use
WEIGHT_FILES = ("*.safetensors", "*.bin")
GOOD = "shipped:<name>, random:<shape>[@<dtype>], hub:<id>@<revision>, or a folder"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")
_REVISION = re.compile(r"[\w./-]+")


@dataclass(frozen=True)
class Source(Artifact):
    """The weights of one source: ``name`` is an id, name, shape or folder; ``revision`` the hub's, or a data type."""

    store = WEIGHTS
    kind: str
    name: str
    revision: str | None = None

    @property
    def spec(self) -> str:
        """The source as a person writes it."""
        if self.kind == "local":
            return self.name
        return f"{self.kind}:{self.name}" + (f"@{self.revision}" if self.revision else "")

    @property
    def label(self) -> str:
        return self.spec

    @property
    def title(self) -> str:
        return f"weights {self.spec}"

    @property
    def argv(self) -> tuple[str, ...]:
        return ("-m", "labctl.artifacts", "pull", self.spec)

    @property
    def key(self) -> str:
        """See :func:`key_of`; a random source's recipe is an input, because changed shapes are other weights."""
        slug = re.sub(r"[^A-Za-z0-9.]+", "-", f"{self.name}-{self.revision or ''}".strip("-"))[-60:].strip("-")
        recipe = random_weights.fingerprint(self.name) if self.kind == "random" else ""
        return key_of(f"{self.kind}-{slug}", self.spec, recipe)

    def locate(self, workspace: Workspace) -> Path:
        match self.kind:
            case "shipped":
                return workspace.models / self.name
            case "local":
                return Path(self.name)
            case "random":  # the shipped tokenizer is copied beside the weights: another one makes another folder
                tokenizer = random_weights.tokenizer_digest(self.name, workspace.models)
                return self.store.folder(workspace) / f"{self.key}-{tokenizer}"
        return super().locate(workspace)

    def ready(self, workspace: Workspace) -> bool:
        path = self.locate(workspace)
        if self.kind == "shipped":
            _check_shipped(self.name, path)
        elif self.kind == "local":
            _check_local(path)
        else:
            return super().ready(workspace)
        return True

    def make(self, workspace: Workspace, tell: Tell, builder: Builder | None = None) -> Path:
        if self.kind in ("shipped", "local"):
            self.ready(workspace)
            return self.locate(workspace)
        offline = os.environ.get("HF_HUB_OFFLINE", "0").lower() in ("1", "true", "yes", "on")
        if self.kind == "hub" and offline and self.ready(workspace):
            tell("offline: the cached copy is used, without asking the hub")
        return super().make(workspace, tell, builder)

    def write(self, fresh: Path, workspace: Workspace, tell: Tell, builder: Builder | None) -> Facts:
        revision = self.revision
        if self.kind == "random":
            random_weights.make_random_weights(self.name, fresh, workspace.models, tell, self.revision)
        else:
            partial = self.store.folder(workspace) / f".{self.key}{PARTIAL}"
            revision = hub.download(self.name, self.revision, fresh, partial, tell)
        return {"spec": self.spec, "revision": revision}

    def identity(self, workspace: Workspace) -> str:
        """A digest of the content of weights that are there; an engine's manifest remembers it."""
        path = self.locate(workspace)
        if self.kind == "shipped":
            return sha256(path / SUMS)
        if self.kind == "local":  # a folder of yours may be large and is not ours to write in: not hashed
            stamps = [(p.name, p.stat().st_size, p.stat().st_mtime_ns) for p in sorted(path.iterdir())]
            return hashlib.sha256(json.dumps(stamps).encode()).hexdigest()
        return folder_digest(self.manifest(workspace)["files"])

    def vocab_size(self, workspace: Workspace) -> int:
        """The number of logits for each position; -1 (any number, for Triton) while the weights are not here."""
        try:
            config = json.loads((self.locate(workspace) / "config.json").read_text(encoding="utf-8"))
            return int(config["vocab_size"])
        except (OSError, ValueError, KeyError, TypeError):  # damaged weights are refused when they are used
            return -1


def parse_source(spec: str) -> Source:
    """The source that a person wrote. Raises LabError: it is not a source, or names a shape that does not exist."""
    kind, colon, rest = spec.strip().partition(":")
    if colon and kind == "hub":
        name, at, revision = rest.partition("@")
        if _HUB_ID.fullmatch(name) and (not at or _REVISION.fullmatch(revision)):
            return Source("hub", name, revision if at else None)
    elif colon and kind == "shipped" and re.fullmatch(r"[\w.-]+", rest):
        return Source("shipped", rest)
    elif colon and kind == "random":
        name, at, dtype = rest.partition("@")
        if name not in random_weights.SHAPES:
            raise LabError(
                f"there is no random shape '{name}'",
                f"there are: {', '.join(random_weights.SHAPES)}",
                code="random-shape-unknown",
            )
        if at and dtype not in random_weights.DTYPES:
            known = ", ".join(random_weights.DTYPES)
            raise LabError(
                f"random weights cannot be made in '{dtype}'",
                f"it must be one of: {known}",
                code="random-dtype-unknown",
            )
        return Source("random", name, dtype if at else None)
    elif spec.strip() and (not colon or spec.startswith(("/", "./", "../", "~"))):
        return Source("local", str(typed_path(spec.strip())))
    raise LabError(f"'{spec}' is not a model source", f"it is one of: {GOOD}", code="model-source-invalid")


def _check_shipped(name: str, path: Path) -> None:
    if not (path / SUMS).is_file():
        names = ", ".join(sorted(p.parent.name for p in path.parent.glob(f"*/{SUMS}")))
        raise LabError(f"no model '{name}' is shipped", f"shipped are: {names}", code="shipped-model-unknown")
    for line in (path / SUMS).read_text(encoding="utf-8").splitlines():
        expected, _, file = line.partition("  ")
        if not (path / file).is_file() or sha256(path / file) != expected:
            raise LabError(
                f"{path / file} is damaged",
                "its hash is not that of SHA256SUMS",
                f"git checkout -- {path}",
                code="artifact-damaged",
            )


def _check_local(path: Path) -> None:
    if not path.is_dir():
        raise LabError(f"there is no model folder {path}", code="model-folder-missing")
    missing = [name for name in ("config.json", "tokenizer.json") if not (path / name).is_file()]
    if not any(next(path.glob(pattern), None) for pattern in WEIGHT_FILES):
        missing.append("model.safetensors")
    if missing:
        raise LabError(
            f"{path} is not a model in Hugging Face's layout",
            f"missing: {', '.join(missing)}",
            code="model-folder-incomplete",
        )
