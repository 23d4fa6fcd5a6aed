"""What every command does first: end and remove what a labctl or a server that was killed left behind."""

from __future__ import annotations

import functools

from labctl import unfinished
from labctl.runtimes import orphans
from labctl.workspace import Workspace


def tidy(workspace: Workspace) -> list[str]:
    """What was ended or removed, in words; in a tidy checkout this takes a few milliseconds."""
    stacks = [path for path in workspace.state.glob("*") if path.is_dir() and not path.is_symlink()]
    ended = orphans.end(workspace.root, [path.name for path in stacks], functools.partial(_held, workspace))
    caches = (workspace.weights_cache, workspace.engines_cache, workspace.templates_cache, workspace.backends_cache)
    return ended + unfinished.sweep([*stacks, *caches])


def _held(workspace: Workspace, stack: str) -> bool:
    from labctl.orchestrator.lock import holder  # only where something looks left behind: it imports more

    return holder(workspace, stack)[0] != 0
