"""The files that the labs came with: which of them a person has edited."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Sequence
from pathlib import Path

from labctl import repository
from labctl.plan import Plan
from labctl.runtimes import processes
from labctl.stack import edits
from labctl.stack.session import Session
from labctl.workspace import Workspace
from labkit.errors import LabError

GIT_S = 30.0


def edited_files(workspace: Workspace, files: Sequence[Path]) -> list[Path]:
    """The files among these that are not as they were shipped.

    Templates outside of the checkout were never shipped, and neither was a lab that a person adds: they have no edits.
    Raises LabError: this checkout does not know what was shipped.
    """
    folders = {path: _lab_of(workspace, path) for path in files if path.is_relative_to(workspace.root)}
    if not folders:
        return []
    names = [str(path.relative_to(workspace.root)) for path in folders]
    commit = _shipped_commit(workspace)
    differing = run_git(workspace, "diff", "--name-only", "--relative", "-z", commit, "--", *names)
    added = run_git(workspace, "ls-files", "--others", "--exclude-standard", "-z", "--", *names)
    changed = {*differing.split("\0"), *added.split("\0")}
    edited = {path: folder for path, folder in folders.items() if str(path.relative_to(workspace.root)) in changed}
    if not edited:
        return []
    shipped = run_git(workspace, "ls-tree", "--name-only", "-z", commit, "--", *set(edited.values()))
    return [path for path, folder in edited.items() if folder in shipped.split("\0")]


def _lab_of(workspace: Workspace, path: Path) -> str:
    """The folder of a lab or of templates that a file belongs to: ``labs/02-iterative-scheduling``."""
    return "/".join(path.relative_to(workspace.root).parts[:2])


def _shipped_commit(workspace: Workspace) -> str:
    """The newest commit of the repository that was cloned: what a person commits is not shipped.

    In a repository that was cloned from nowhere it is the last commit.
    """
    for published in ("refs/remotes/origin/HEAD", "@{upstream}"):
        with contextlib.suppress(LabError):
            return run_git(workspace, "merge-base", "HEAD", published).strip()
    return "HEAD"


def run_git(workspace: Workspace, *arguments: str) -> str:
    """Run git in the checkout; its stdout. Raises LabError: it fails, or cannot be run."""
    remedy = "clone the project with git"
    try:
        ended = processes.run_short(["git", "-C", str(workspace.root), *arguments], workspace.root, GIT_S)
        if ended and not ended.code:
            return ended.out
        why = " ".join((ended.err if ended else "git did not answer").split())
    except OSError as error:
        why = f"git cannot be run: {error.strerror}"
        remedy = "install git (apt-get install git)"
    raise LabError("this checkout does not know which files were shipped", why, remedy, code="shipped-files-unknown")


def require_sound(session: Session, plan: Plan) -> None:
    """Raises LabError for a model that Python cannot read."""
    for place, path in sorted(repository.origins(plan.request).items()):
        if found := syntax_error(path):
            line, words = found
            model, file = place.partition("/")[0], edits.relative_name(path, session.workspace.root)
            raise LabError(
                f"{model} could not be loaded: {words} ({file}, line {line})",
                "nothing was taken down",
                f"correct it, or: git restore {file}",
                code="model-syntax",
            )


def syntax_error(path: Path) -> tuple[int | None, str] | None:
    """The line and the message of a file's syntax error; None without one, or if the file is not Python."""
    if path.suffix != ".py":
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(path.read_bytes(), path.name, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        return getattr(error, "lineno", None), f"{type(error).__name__}: {getattr(error, 'msg', error)}"
    return None
