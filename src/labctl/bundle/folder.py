"""A new working folder: a copy of the files that this labctl came with."""

from __future__ import annotations

import os
from pathlib import Path

from labctl import unfinished, workspace
from labctl.bundle.pack import FOLDER, checkout_files
from labctl.runtimes import leftovers
from labkit.disk import disk_errors, need_space
from labkit.errors import LabError
from labsched.files import open_to_read

IN_WHEEL = Path(__file__).resolve().parents[1] / "checkout"  # the build of a wheel puts the files there (setup.py)
SHIPPED = Path(FOLDER, "shipped")  # the shipped files, for `labctl undo`: the new folder has no git
EDITED = ("labs", "model_repos")  # where a person edits models


def make_folder(target: Path) -> int:
    """Copy a checkout's files to ``target``, which is empty or not there. Returns their number.

    The folder appears whole or not at all. Links are neither followed nor copied.

    Raises LabError: something is there, the disk refuses, or labctl was installed without these files.
    """
    source, target = _source(), target.absolute()
    _require_free(target)
    files = [path for path in checkout_files(source) if not (source / path).is_symlink()]
    need_space(target, sum((source / path).stat().st_size for path in files))
    with disk_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        leftovers.sweep_beside(target, lambda left: None)  # leftovers of a labctl that was killed
        with unfinished.temporary_folder(target) as fresh:
            fresh.chmod(0o755)  # a server in a container may be another user
            for path in files:
                _copy(source / path, fresh / path)
                if path.parts[0] in EDITED:
                    _copy(source / path, fresh / SHIPPED / path)
            fresh.rename(target)  # an empty folder may be renamed over, another one not
    return len(files)


def _source() -> Path:
    """The checkout that labctl is installed from, else the files in its wheel."""
    for folder in (workspace.INSTALLED_FROM, IN_WHEEL):
        if workspace.is_checkout(folder):
            return folder
    raise LabError(
        "this labctl came without the labs",
        f"it was installed neither from a checkout nor from a whole wheel ({IN_WHEEL} is not there)",
        "git clone the project, or install triton-serving-labs from a package index",
        code="labs-missing",
    )


def _require_free(target: Path) -> None:
    """Refuse what cannot become a new folder."""
    why = ""
    if target.is_symlink():
        why = "it is a link, and labctl follows none there"
    elif target.is_dir():
        if any(target.iterdir()):
            why = "it is not empty"
        elif target.samefile(Path.cwd()):
            why = "the terminal stands in it, and would be left in a folder that is gone"
    elif os.path.lexists(target):
        why = "it is not a folder"
    if why:
        raise LabError(
            f"{target} cannot become a new folder of the labs",
            why,
            "labctl new with another name",
            code="new-folder-unusable",
        )


def _copy(source: Path, target: Path) -> None:
    """Copy a file. It becomes the caller's to edit, whatever its mode was; a script stays executable."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with open_to_read(source) as stream:
        data, mode = stream.read(), os.fstat(stream.fileno()).st_mode
    target.write_bytes(data)
    target.chmod(0o755 if mode & 0o100 else 0o644)
