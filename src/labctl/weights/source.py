"""A model source as a person writes it, and the folder that belongs to it. No network, no torch."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from labctl.errors import LabError
from labctl.weights import shapes
from labctl.workspace import Workspace

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")
_REVISION = re.compile(r"[\w./-]+")
GOOD = "shipped:<name>, random:<shape>[@<dtype>], hub:<id>@<revision>, or a folder"


@dataclass(frozen=True)
class Source:
    """``kind`` is hub, shipped, random or local; ``name`` the id, name, shape or folder.

    ``revision`` is the hub's, or the data type of random weights; empty means the default.
    """

    kind: str
    name: str
    revision: str = ""

    @property
    def spec(self) -> str:
        """As a person writes it."""
        if self.kind == "local":
            return self.name
        return f"{self.kind}:{self.name}" + (f"@{self.revision}" if self.revision else "")

    @property
    def key(self) -> str:
        """The cache folder's name: readable, and unlike for every other source.

        A recipe's digest is part of a random source's key: changed shapes are other weights.
        """
        slug = re.sub(r"[^A-Za-z0-9.]+", "-", f"{self.name}-{self.revision}".strip("-"))[-60:].strip("-")
        recipe = shapes.fingerprint(self.name) if self.kind == "random" else ""
        digest = hashlib.sha256(f"{self.spec}\0{recipe}".encode()).hexdigest()[:10]
        return f"{self.kind}-{slug}-{digest}"


def parse(spec: str) -> Source:
    """Read a source.

    Raises:
        LabError: it is none, or names a shape that there is not.
    """
    kind, colon, rest = spec.strip().partition(":")
    if colon and kind == "hub":
        name, _, revision = rest.partition("@")
        if _HUB_ID.fullmatch(name) and (not revision or _REVISION.fullmatch(revision)):
            return Source("hub", name, revision)
    elif colon and kind == "shipped" and re.fullmatch(r"[\w.-]+", rest):
        return Source("shipped", rest)
    elif colon and kind == "random":
        name, _, dtype = rest.partition("@")
        if name not in shapes.SHAPES:
            raise LabError(f"there is no random shape '{name}'", f"there are: {', '.join(shapes.SHAPES)}")
        if dtype and dtype not in shapes.DTYPES:
            raise LabError(
                f"random weights cannot be made in '{dtype}'", f"it must be one of: {', '.join(shapes.DTYPES)}"
            )
        return Source("random", name, dtype)
    elif colon and kind == "local" and rest:
        return Source("local", str(Path(rest).expanduser().absolute()))
    elif spec.strip() and (not colon or spec.startswith(("/", "./", "../", "~"))):
        return Source("local", str(Path(spec.strip()).expanduser().absolute()))
    raise LabError(f"'{spec}' is not a model source", f"it is one of: {GOOD}")


def locate(source: Source, workspace: Workspace) -> Path:
    """The folder where the weights are, or will be once pulled."""
    match source.kind:
        case "shipped":
            return workspace.models / source.name
        case "local":
            return Path(source.name)
        case "random":  # the shipped tokenizer is copied beside the weights: another one makes another folder
            return workspace.weights_cache / f"{source.key}-{shapes.tokenizer_digest(source.name, workspace.models)}"
    return workspace.weights_cache / source.key
