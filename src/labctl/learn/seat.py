"""A learner's seat: what JupyterHub starts for each (deploy/hub/jupyterhub_config.py). It becomes JupyterLab.

The first time it copies the class's checkout, lays out the first exercise and opens the lesson, the task, the learner's
file and a terminal beside each other. The room's weights and engines are links, not copies.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from labctl import litter
from labctl.learn import desk
from labctl.learn.exercise import Exercise, find_exercise, find_exercises
from labctl.learn.progress import Progress
from labctl.learn.room import LABS
from labctl.limits import CLASS_TOKEN
from labctl.listener import Silent
from labctl.runtimes import processes
from labctl.stack.session import Session
from labctl.workspace import Workspace
from labkit.disk import atomic_write, replace_dir
from labkit.errors import LabError

SHARED = Path("/labs/cache")  # in a container: the teacher's cache, which is read-only
KINDS = ("weights", "engines", "layers")
TERMINAL = {"shell_command": ["/bin/bash", "-i"]}  # a login shell would take another PATH
QUIET = {"@jupyterlab/apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False}}
PREVIEW = "markdownviewer-widget"
# The parts of the class's checkout that a learner's folder has, and that a learner's container sees.
FOLDERS = ("labs", "model_repos", "docs", "src", "requirements", "scripts")
FILES = ("pyproject.toml", "Makefile", "README.md", ".gitignore")
GIT = ("git", "-c", "user.name=labs", "-c", "user.email=labs@localhost")
GIT_S = 60.0


def main(arguments: Sequence[str]) -> None:
    """Make ready what is missing, and become JupyterLab."""
    root = Path.home() / LABS
    if not root.is_dir():
        copy_checkout(Workspace.find().root, root)
    as_after_setup(root)
    os.chdir(root)
    os.environ["LABS_ROOT"] = str(root)  # so that labctl finds the checkout from any folder of a learner's terminal
    workspace = Workspace.find()
    link_shared(workspace.cache)
    if not layouts().list_workspaces():
        session = Session.open(Silent())
        exercises = find_exercises(workspace, session.catalog, lambda problem: None)
        progress = Progress(workspace)
        first = os.environ.get("HUB_LAB", "")  # "02": the class begins with 02a
        of_lab = [each for each in exercises if each.id.startswith(first)]
        begun = find_exercise(exercises, progress.current) if progress.current else None
        if exercise := begun or progress.next_open(of_lab) or progress.next_open(exercises):
            desk.lay_out_exercise(exercise, workspace)
            progress.start(exercise.id)
            lay_side_by_side(exercise)
    for name, settings in QUIET.items():
        path = Path.home() / ".jupyter" / "lab" / "user-settings" / f"{name}.jupyterlab-settings"
        if not path.exists():
            atomic_write(path, json.dumps(settings))
    if CLASS_TOKEN.is_file():  # without a container the environment has it
        os.environ["JUPYTERHUB_API_TOKEN"] = CLASS_TOKEN.read_text(encoding="utf-8")
    os.environ["PATH"] = f"{Path(sys.prefix, 'bin')}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    options = [f"--ServerApp.root_dir={root}", f"--ServerApp.terminado_settings={TERMINAL}"]
    os.execv(sys.executable, [sys.executable, "-m", "jupyterhub.singleuser", *options, *arguments])


def copy_checkout(source: Path, root: Path) -> None:
    """Copy the class's checkout, and commit it: `git checkout FILE` brings a file back, and an edited one is known."""
    with replace_dir(root) as fresh:
        for name in FOLDERS:
            shutil.copytree(source / name, fresh / name, ignore=litter.ignore)
        for name in FILES:
            shutil.copy2(source / name, fresh / name)
        for words in (["init", "--quiet"], ["add", "--all"], ["commit", "--quiet", "--message", "The labs"]):
            ended = processes.run_short([*GIT, *words], fresh, GIT_S)
            if not ended or ended.code:
                why = ended.err.strip() if ended else f"no answer within {GIT_S:g} s"
                raise LabError(f"git {words[0]} failed in {fresh}", why, code="seat-not-made")


def as_after_setup(root: Path) -> None:
    """Let the lessons' `make lab-...` find their environment: the one in which this program runs."""
    (root / ".venv").mkdir(exist_ok=True)
    with contextlib.suppress(FileExistsError):
        (root / ".venv" / "bin").symlink_to(Path(sys.prefix) / "bin")
    (root / ".venv" / ".ready").touch()


def link_shared(cache: Path) -> None:
    """Link the room's weights and engines into the learner's own cache, where more can be made."""
    for kind in KINDS:
        for made in (SHARED / kind).glob("*"):
            (cache / kind).mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                (cache / kind / made.name).symlink_to(made)


def lay_side_by_side(exercise: Exercise, name: str = "default") -> None:
    """Write a workspace of JupyterLab's, which shows it at lab/workspaces/NAME, the default one at lab."""
    layouts().save(name, json.dumps({"data": side_by_side(exercise), "metadata": {"id": name}}))


def layouts() -> Any:
    """JupyterLab's workspaces of the learner that this runs for."""
    from jupyterlab.commands import get_workspaces_dir
    from jupyterlab_server.workspaces_handler import WorkspacesManager

    return WorkspacesManager(get_workspaces_dir())


def side_by_side(exercise: Exercise) -> dict[str, Any]:
    """What JupyterLab restores: the lesson and the task left, the learner's file over a terminal right."""
    lesson = f"labs/{exercise.lab.folder}/README.md"
    task = f"exercises/{exercise.id}/{desk.TASK}"
    files = [exercise.place(name) for name in exercise.manifest.files]
    opened: dict[str, Any] = {
        f"{PREVIEW}:{path}": {"data": {"path": path, "factory": "Markdown Preview"}} for path in (lesson, task)
    }
    opened |= {f"editor:{path}": {"data": {"path": path, "factory": "Editor"}} for path in files}
    opened["terminal:1"] = {"data": {"name": "1"}}

    def tabs(widgets: Sequence[str]) -> dict[str, Any]:
        return {"type": "tab-area", "currentIndex": 0, "widgets": list(widgets)}

    left = tabs([f"{PREVIEW}:{task}", f"{PREVIEW}:{lesson}"])
    right = {
        "type": "split-area",
        "orientation": "vertical",
        "sizes": [0.6, 0.4],
        "children": [tabs([f"editor:{path}" for path in files]), tabs(["terminal:1"])],
    }
    main = {"type": "split-area", "orientation": "horizontal", "sizes": [0.45, 0.55], "children": [left, right]}
    shell = {
        "main": {"dock": main, "current": f"editor:{files[0]}"},
        "left": {"collapsed": True, "visible": True, "widgets": []},
        "right": {"collapsed": True, "visible": True, "widgets": []},
    }
    return {"layout-restorer:data": shell, **opened}


if __name__ == "__main__":
    main(sys.argv[1:])
