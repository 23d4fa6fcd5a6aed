"""``labctl render --target killercoda|instruqt``: a lab's exercises as a scenario of a platform with browser terminals.

Each exercise is a step: its task, a script that lays out the starter, and one that lets the learner go on if
``labctl exercise check ID --quiet`` ends with 0. What the platforms read:

- Killercoda: ``index.json`` names the texts and scripts (as in its examples,
  https://github.com/killercoda/scenario-examples). A step's ``foreground`` script runs in the learner's terminal; its
  ``verify`` script lets the learner go on with exit status 0.
- Instruqt: ``track.yml``, ``config.yml`` with the machine, and a folder for each challenge with ``assignment.md`` and
  the scripts ``setup-HOST``, ``check-HOST`` and ``solve-HOST``
  (https://docs.instruqt.com/sandboxes/lifecycle-scripts/add-a-script-to-check-challenge-execution). A check that fails
  prints ``FAIL: `` and a sentence for the learner (https://docs.instruqt.com/tracks/lifecycle-scripts).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from labctl.learn.desk import TASK
from labctl.learn.exercise import Exercise, find_all
from labctl.listener import Listener
from labctl.manifest.schema import Lab
from labctl.runtimes.processes import Action
from labctl.stack.session import Session, Todo
from labctl.unfinished import replace_dir
from labkit.errors import LabError

TARGETS = ("killercoda", "instruqt")
MARK = ".labctl-scenario"  # a folder with it is ours to replace
HOST, IMAGE = "workstation", "ubuntu-os-cloud/ubuntu-2404-lts-amd64"  # Instruqt's machine
FOLDER = "$HOME/triton-serving-labs"
CHECK_S = 1800  # for a challenge, in seconds; Instruqt ends a challenge that takes longer
NEXT = {
    "killercoda": "push it to the repository that your Killercoda account reads",
    "instruqt": "set owner in track.yml, then instruqt track push",
}
HEAD = "#!/bin/bash\nset -eu\n"
# What a new Ubuntu 24.04 lacks, then the working folder and .venv. A second run finds all of it.
SETUP = f"""{HEAD}folder={FOLDER}
has() {{ command -v "$1" >/dev/null; }}
if ! has make || ! has git || ! has uvx || ! ldconfig -p | grep -q 'libpython3\\.1[12]\\.so'; then
    apt-get update -q
    libpython=libpython3.$(python3 -c 'import sys; print(sys.version_info[1])')
    apt-get install -q -y --no-install-recommends make git python3-venv "$libpython"
    has uvx || {{ python3 -m venv /opt/uv && /opt/uv/bin/pip install -q uv; }}
    PATH=$PATH:/opt/uv/bin
fi
[ -e "$folder/Makefile" ] || uvx triton-serving-labs new "$folder"
make -C "$folder" setup
"""
# Without a verdict labctl has said in the terminal why.
FAIL = '{ echo "FAIL: ${verdict:-the check could not run: run it in the terminal}"; exit 1; }'
INTRO = """# {title}

{summary}

{what}

The labs are installed first, which takes some minutes: about 3 GB.
"""
STEP = """{task}

```
cd {folder} && source .venv/bin/activate
labctl exercise start {id}
```{run}

Edit {files}. Then let your own server judge it:

```
labctl exercise check {id}
```{run}

`labctl exercise hint` helps.
"""
FINISH = "# Done\n\nYou have written what the lab is about. `labctl learn` has the exercises of the other labs.\n"


def render_scenario(session: Session, lab: Lab, target: str, output: Path | None) -> Todo:
    """The scenario of a lab, as a folder.

    Raises LabError: the lab has no exercises, or the folder is somebody else's.
    """
    exercises = [one for one in find_all(session.workspace, session.catalog) if one.lab.folder == lab.folder]
    if not exercises:
        raise LabError(f"lab {lab.number} has no exercises", "a scenario's steps are exercises", "labctl exercise list")
    folder = output or session.workspace.root / f"{lab.short}-{target}"
    if folder.exists() and not (folder / MARK).is_file() and any(folder.iterdir()):
        raise LabError(f"{folder} is not empty", "labctl has not rendered what is in it", "name another --output")
    files = (_killercoda if target == "killercoda" else _instruqt)(lab, exercises)

    def do(listener: Listener) -> str:
        with replace_dir(folder) as fresh:
            for name, text in {**files, MARK: ""}.items():
                path = fresh / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
                path.chmod(0o755 if text.startswith("#!") else 0o644)
        return f"{folder}: {NEXT[target]}"

    return Todo("local", "cpu", [], [Action(f"lab {lab.number} for {target}", do, files=[f"{folder}/"])])


def _in_labs(*commands: str) -> str:
    return "\n".join([f'{HEAD}cd "{FOLDER}"', *commands, ""])


def _start(exercise: Exercise) -> str:
    return _in_labs(f".venv/bin/labctl exercise start {exercise.id}")


def _solve(exercise: Exercise) -> str:
    solution = f"labs/{exercise.lab.folder}/exercises/{exercise.folder.name}/solution"
    copies = [f"cp {solution}/{name} exercises/{exercise.id}/{name}" for name in exercise.manifest.files]
    return _in_labs(f".venv/bin/labctl exercise start {exercise.id}", *copies)


def _text(exercise: Exercise, run: str) -> str:
    files = ", ".join(f"`exercises/{exercise.id}/{name}`" for name in exercise.manifest.files)
    task = (exercise.folder / TASK).read_text(encoding="utf-8").strip()
    return STEP.format(task=task, folder=FOLDER.replace("$HOME", "~"), id=exercise.id, files=files, run=run)


def _intro(lab: Lab, exercises: Sequence[Exercise]) -> str:
    what = "\n".join(f"- {one.title} (about {one.manifest.minutes} minutes)" for one in exercises)
    return INTRO.format(title=lab.title, summary=lab.summary, what=what)


def _killercoda(lab: Lab, exercises: Sequence[Exercise]) -> Mapping[str, str]:
    files = {"intro/text.md": _intro(lab, exercises), "intro/foreground.sh": SETUP, "finish/text.md": FINISH}
    steps = []
    for number, exercise in enumerate(exercises, start=1):
        own = {"text": f"step{number}/text.md", "foreground": f"step{number}/foreground.sh"}
        own["verify"] = f"step{number}/verify.sh"
        steps.append({"title": exercise.title, **own})
        files[own["text"]] = _text(exercise, "{{exec}}")
        files[own["foreground"]] = _start(exercise)
        files[own["verify"]] = _in_labs(f"exec .venv/bin/labctl exercise check {exercise.id} --quiet")
    intro = {"title": "Installation", "text": "intro/text.md", "foreground": "intro/foreground.sh"}
    index = {
        "title": lab.title,
        "description": lab.summary,
        "details": {"intro": intro, "steps": steps, "finish": {"title": "Done", "text": "finish/text.md"}},
        "backend": {"imageid": "ubuntu-4GB"},
    }
    return {"index.json": json.dumps(index, indent=2) + "\n", **files}


def _instruqt(lab: Lab, exercises: Sequence[Exercise]) -> Mapping[str, str]:
    track = {
        "slug": f"triton-serving-labs-{lab.short}",
        "type": "track",
        "title": lab.title,
        "teaser": lab.summary,
        "description": _intro(lab, exercises),
        "tags": ["triton", "llm"],
        "owner": "",
        "private": True,
        "published": False,
    }
    machine = {"name": HOST, "image": IMAGE, "shell": "/bin/bash", "machine_type": "n1-standard-2"}
    config = {"version": "3", "virtualmachines": [machine]}
    files = {"track.yml": _yaml(track), "config.yml": _yaml(config), f"track_scripts/setup-{HOST}": SETUP}
    for number, exercise in enumerate(exercises, start=1):
        head = {
            "slug": exercise.folder.name,
            "type": "challenge",
            "title": exercise.title,
            "teaser": exercise.title,
            "tabs": [{"title": "Terminal", "type": "terminal", "hostname": HOST}],
            "difficulty": "intermediate",
            "timelimit": max(CHECK_S, exercise.manifest.minutes * 120),
        }
        check = f".venv/bin/labctl exercise check {exercise.id} --quiet"
        folder = f"{number:02}-{exercise.folder.name}"
        files |= {
            f"{folder}/assignment.md": f"---\n{_yaml(head)}---\n{_text(exercise, '')}",
            f"{folder}/setup-{HOST}": _start(exercise),
            f"{folder}/check-{HOST}": _in_labs(f"verdict=$({check}) || {FAIL}"),
            f"{folder}/solve-{HOST}": _solve(exercise),
        }
    return files


def _yaml(data: Mapping[str, Any]) -> str:
    return yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=120)
