"""Which files of a checkout a bundle takes: those of git, or, in a copy without git, all that git would not ignore."""

from __future__ import annotations

import fnmatch
from pathlib import Path

from labctl.runtimes import processes
from labkit.errors import LabError

OURS = (".bundle", "install")  # what a bundle adds to the checkout
GIT_S = 60.0


def files(root: Path) -> list[Path]:
    """Relative paths, sorted. What a person has added and not committed stays at home.

    Raises:
        LabError: it is a clone, and git does not say what is in it.
    """
    if (root / ".git").exists():
        paths = [Path(name) for name in _tracked(root).split("\0") if name]
        return sorted(path for path in paths if (root / path).is_file())
    ignored = [line for line in (root / ".gitignore").read_text(encoding="utf-8").splitlines() if line.strip("/")]
    return sorted(
        relative
        for path in root.rglob("*")
        if path.is_file()
        and (relative := path.relative_to(root)).parts[0] not in OURS
        and not any(_ignores(line, relative) for line in ignored)
    )


def _tracked(root: Path) -> str:
    try:
        ended = processes.run_short(["git", "-C", str(root), "ls-files", "-z"], root, GIT_S)
    except OSError:
        why = "git is not installed"
    else:
        if ended and ended[0] == 0:
            return ended[1]
        why = " ".join(ended[2].split()) if ended else f"git did not answer within {GIT_S:g} s"
    raise LabError(f"{root} is a clone, and its files cannot be listed", why, "install git (apt-get install git)")


def _ignores(line: str, path: Path) -> bool:
    """Whether a line of .gitignore means that file, or a folder that it is in; one that begins with "/" is anchored."""
    name = line.strip("/")
    parts = path.parts[: name.count("/") + 1] if line.startswith("/") else path.parts
    if line.startswith("/"):
        return fnmatch.fnmatch("/".join(parts), name)
    return any(fnmatch.fnmatch(part, name) for part in (parts[:-1] if line.endswith("/") else parts))
