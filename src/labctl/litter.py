"""What editors, notebooks, file managers and Python leave beside a person's files: it belongs to nothing of theirs.

Triton skips a version folder that is no number, and reads only the files that a backend asks for. So none of these is
a part of a model.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import translate
from pathlib import Path, PurePath

FOLDERS = (
    ".ipynb_checkpoints __pycache__ .idea .vscode .vs .fleet .git .hg .svn .mypy_cache .ruff_cache .pytest_cache "
    ".hypothesis .Trash-* __MACOSX .tmp"
).split()
FILES = [
    *"*~ .*.sw[a-z] .*.un~ 4913".split(),  # nano, gedit, Emacs, Vim; the last is Vim's test whether it may write
    *"#*# .#*".split(),  # Emacs: what is not saved yet, and its lock, a link that leads nowhere
    *"*___jb_tmp___ *___jb_old___ .*.kate-swp .goutputstream-* .~lock.*#".split(),  # JetBrains, Kate, GNOME, Office
    *".DS_Store ._* Thumbs.db desktop.ini .directory .nfs* .fuse_hidden*".split(),  # macOS, Windows, KDE, file systems
    *"*.py[co] *.bak *.orig *.rej .gitkeep".split(),
]
_FOLDER = re.compile("|".join(map(translate, FOLDERS)))
_FILE = re.compile("|".join(map(translate, FILES)))


def is_litter(path: PurePath) -> bool:
    """Whether a file was left by a tool.

    Args:
        path: below the folder that is looked through; what that folder itself is called does not matter.
    """
    return bool(_FILE.match(path.name)) or any(_FOLDER.match(part) for part in path.parts)


def files_in(folder: Path, pattern: str = "**/*") -> list[Path]:
    """The files of a folder that a person put there, sorted. ``pattern`` is a glob below it."""
    return sorted(path for path in folder.glob(pattern) if not is_litter(path.relative_to(folder)) and path.is_file())


def ignore(folder: str, names: Iterable[str]) -> list[str]:
    """For ``shutil.copytree``: the names that are litter."""
    return [name for name in names if is_litter(PurePath(name))]
