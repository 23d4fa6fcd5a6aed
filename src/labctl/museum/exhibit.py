"""An exhibit: a folder of ``labs/extras/museum/`` with a manifest, models, ``reproduce.py`` and a page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from labctl.litter import files_in
from labctl.workspace import Workspace
from labkit.errors import LabError
from labkit.strict_yaml import parse_yaml

PARTS = ("models", "reproduce.py", "README.md")
DEADLY = "kills"
Wing = Literal["scheduling", "flow", "sequences", "lifecycle", "kills"]


class Upstream(BaseModel):
    """The issue or pull request upstream, as read in August 2026.

    Attributes:
        repository: below ``triton-inference-server``.
        state: open, closed or merged.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    repository: Literal["server", "core", "python_backend"]
    number: int = Field(ge=1)
    kind: Literal["issue", "pull request"] = "issue"
    title: str
    state: Literal["open", "closed", "merged"]


class _Workaround(BaseModel):
    """The work-around. Files in the exhibit's ``workaround/`` are laid over its models.

    Attributes:
        used: where this project uses it; "" if nowhere.
        arguments: of the server, in the place of the exhibit's own; None: the same.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    text: str
    used: str
    arguments: list[str] | None = None


class _ExhibitManifest(BaseModel):
    """``exhibit.yaml``.

    Attributes:
        title: what happens, in our words.
        upstream: None if upstream has no issue of it (``labs/extras/museum/upstream/`` may have its text).
        affected, fixed: releases; ``fixed`` names the pull request, and is "" if no release has it.
        teaches: the general lesson, a few words.
        expects: what a run sees on an affected release.
        arguments: of the server, in addition to the common ones.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    title: str = Field(max_length=56)  # a line of the list has 80 columns
    wing: Wing
    upstream: Upstream | None
    affected: str
    fixed: str
    teaches: str
    expects: str
    arguments: list[str] = []
    workaround: _Workaround


@dataclass(frozen=True)
class Exhibit:
    """One exhibit; ``name`` is its folder's."""

    name: str
    folder: Path
    manifest: _ExhibitManifest

    @property
    def number(self) -> str:
        """``server#8870``, or the name where upstream has no number."""
        upstream = self.manifest.upstream
        return f"{upstream.repository}#{upstream.number}" if upstream else self.name

    @property
    def deadly(self) -> bool:
        return self.manifest.wing == DEADLY

    def arguments(self, workaround: bool) -> list[str]:
        """The server's arguments, in addition to the common ones."""
        instead = self.manifest.workaround.arguments
        return self.manifest.arguments if not workaround or instead is None else instead


def find_exhibits(workspace: Workspace) -> list[Exhibit]:
    """Every exhibit, by wing and name; exhibits that end the server come last.

    Raises LabError: there is none, or some are broken; all problems are listed.
    """
    exhibits: list[Exhibit] = []
    problems: list[str] = []
    for path in files_in(workspace.extras / "museum", "*/exhibit.yaml"):
        try:
            manifest = _ExhibitManifest.model_validate(parse_yaml(path.read_text(encoding="utf-8")) or {})
            if missing := [part for part in PARTS if not (path.parent / part).exists()]:
                raise ValueError(f"missing: {', '.join(missing)}")
            exhibits.append(Exhibit(path.parent.name, path.parent, manifest))
        except ValidationError as error:
            problems += [f"{path.parent.name}: {'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()]
        except (yaml.YAMLError, OSError, ValueError) as error:
            problems.append(f"{path.parent.name}: {' '.join(str(error).split())}")
    if problems or not exhibits:
        raise LabError(
            "the museum is broken", "" if problems else "it has no exhibit", details=problems, code="museum-broken"
        )
    order = list(Wing.__args__)  # type: ignore[attr-defined]
    return sorted(exhibits, key=lambda exhibit: (order.index(exhibit.manifest.wing), exhibit.name))


def find_exhibit(exhibits: list[Exhibit], word: str) -> Exhibit:
    """The exhibit of a number (``server#8870``, ``8870``) or a name (``server-8870``). Raises LabError."""
    for exhibit in exhibits:
        if word in (exhibit.name, exhibit.number, exhibit.number.rpartition("#")[2]):
            return exhibit
    raise LabError(f"there is no exhibit {word}", "", "labctl reproduce list", code="exhibit-unknown")
