"""Which files of a checkout a bundle takes: those of git, or, in a copy without git, all that git would not ignore."""

from __future__ import annotations

import fnmatch
from pathlib import Path

from labctl.runtimes import processes

OURS = (".bundle", "install")  # what a bundle adds to the checkout


def files(root: Path) -> list[Path]:
    """Relative paths, sorted. What a person has added and not committed stays at home."""
    if (root / ".git").exists():
        listed = processes.ask(["git", "-C", str(root), "ls-files", "-z"], timeout=60)
        if listed.returncode == 0:
            paths = [Path(name) for name in listed.stdout.split("\0") if name]
            return sorted(path for path in paths if (root / path).is_file())
    ignored = [line.strip("/\n") for line in (root / ".gitignore").read_text(encoding="utf-8").splitlines() if line]
    return sorted(
        relative
        for path in root.rglob("*")
        if path.is_file()
        and (relative := path.relative_to(root)).parts[0] not in OURS
        and not any(fnmatch.fnmatch(part, name) for part in relative.parts for name in ignored)
    )
