"""What every command does first: end and remove what a labctl or a server that was killed left behind."""

from __future__ import annotations

import functools

from labctl import unfinished
from labctl.artifacts.store import STORES
from labctl.runtimes import orphans
from labctl.workspace import Workspace


def tidy(workspace: Workspace) -> list[str]:
    """What was ended or removed, in words; in a tidy checkout this takes a few milliseconds."""
    stacks = [folder.path for folder in workspace.folders()]
    ended = orphans.end(workspace.root, [path.name for path in stacks], functools.partial(_held, workspace))
    artifacts = [store.folder(workspace) for store in STORES]
    caches = [*artifacts, workspace.templates_cache, workspace.backends_cache]
    return ended + unfinished.sweep([*stacks, *caches]) + _bundles(workspace)


def _bundles(workspace: Workspace) -> list[str]:
    if not (workspace.state / "bundles").is_file():
        return []
    from labctl.bundle.staging import sweep  # only where a bundle was begun

    return sweep(workspace)


def _held(workspace: Workspace, stack: str) -> bool:
    from labctl.stack.lock import holder  # only where something looks left behind: it imports more

    return holder(workspace, stack)[0] != 0
