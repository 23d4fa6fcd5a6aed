"""Whether Python can read what a person edited: asked before something that serves is taken down for it."""

from __future__ import annotations

import warnings
from pathlib import Path

from labctl import repository
from labctl.plan import Plan
from labctl.stack import edits
from labctl.stack.session import Session
from labkit.errors import LabError


def require(session: Session, plan: Plan) -> None:
    """Raises LabError for a model that Python cannot read."""
    for place, path in sorted(repository.origins(plan.request).items()):
        if found := mistake(path):
            file, (line, words) = edits.below(path, session.workspace.root), found
            raise LabError(
                f"{place.partition('/')[0]} could not be loaded: {words} ({file}, line {line})",
                "nothing was taken down",
                f"correct it, or labctl undo {plan.name}",
            )


def mistake(path: Path) -> tuple[int | None, str] | None:
    """The line and the words of what Python cannot read in a file; None where it can, or it is no Python."""
    if path.suffix != ".py":
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(path.read_bytes(), path.name, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        return getattr(error, "lineno", None), f"{type(error).__name__}: {getattr(error, 'msg', error)}"
    return None
