"""Write the lessons that are also notebooks: labs/NN-name/notebook.ipynb (`make notebooks`).

A notebook is its lesson's README.md with its pictures in it, and cells: one that installs, the lesson's own commands,
one that shows what the run drew, and for each exercise its task, its starter and its check.
"""

from __future__ import annotations

import base64
import json
import re
import sys
from pathlib import Path

import jupytext
import yaml

from labctl.catalog import load_catalog
from labctl.workspace import Workspace

ROOT = Path(__file__).resolve().parents[1]
LABS = ("02", "05", "06", "08")
RUN = re.compile(r"^## (?:Run it|What you see)\n.*?(?=^## )", re.M | re.S)
BLOCK = re.compile(r"^```bash\n(.*?)^```\n", re.M | re.S)
PICTURE = re.compile(r"(!\[[^\]]*\])\(([^):]+)\)")
ADDRESS = re.compile(r"^git clone (https://\S+)", re.M)

INSTALL = """
# Installs the labs where they are not there yet: 2 to 4 minutes, 700 MB. {vllm_note}With a GPU: 3.8 GB more.
import os, shutil, sys
from html import escape
from importlib.util import find_spec
from pathlib import Path
from IPython.display import HTML, Image, display

REPOSITORY = "{address}"  # to clone from, if this notebook was opened without the files around it (Colab)
here = Path.cwd()
root = next((each for each in (here, *here.parents) if (each / "model_repos").is_dir()), here / "triton-serving-labs")
if not root.is_dir():
    assert REPOSITORY, "name in REPOSITORY where to clone the labs from"
    !git clone --depth 1 {{REPOSITORY}} {{root}}
os.chdir(root)
Path("results").mkdir(exist_ok=True)
if not shutil.which("labctl"):
    if not find_spec("ensurepip"):  # Debian, Ubuntu and so Colab have it in a package of its own
        python = f"python3.{{sys.version_info.minor}}"
        !apt-get -qq update && apt-get -qq install {{python}}-venv lib{{python}} make git
    !make setup
    os.environ["PATH"] = f"{{root}}/.venv/bin:" + os.environ["PATH"]
os.environ.update(TERM="dumb", COLUMNS="110")  # plain lines of output
{vllm}RUN = "--ports auto --quick"  # without --quick: the whole lab
if shutil.which("nvidia-smi"):  # a GPU that is too small for this lab: the doctor says so, and the processor serves
    !labctl engines install vllm --profile gpu && labctl doctor {short} --profile gpu
    RUN += "" if _exit_code else " --profile gpu"
print("labctl run gets", RUN)
"""
VLLM = "!labctl engines install vllm --profile cpu\n"

SHOW = """
newest = max(Path("results/{folder}").iterdir())
for picture in sorted(newest.glob("*.png")):
    display(Image(str(picture)))
HTML(f'<p><iframe srcdoc="{{escape((newest / "timeline.html").read_text())}}" width="100%" height="700"></iframe>')
"""
SHOWN = """
The run drew these pictures, and `timeline.html`: the strip of [the live page](../../docs/guide/watch.md), step by step.
*Guess* works here too. The live page itself needs a terminal: see *Watch it*.
"""

OWN = """
## Your own vLLM

This reads what [a vLLM of your own](../../docs/guide/your-own-vllm.md) has recorded: name the folder, or upload it.
Without one the cell does nothing. It needs `labctl engines install vllm`.
"""
ASK = """
recording = os.environ.get("LABS_RECORD", "")  # the folder that LABS_RECORD named when vLLM served
if recording:
    !labctl explain {recording} --picture results/explained.png
    display(Image("results/explained.png"))
    !labctl predict {recording} -y --sweep max_num_seqs=4,8,16
"""

WHERE = """
This page is also `README.md`, in the same folder. As a notebook it needs Linux with Python 3.11 or 3.12, and no Docker.
With an NVIDIA GPU the lab takes `--profile gpu` where the GPU is large enough for it. {colab}

*What ran:* every cell, by `nbclient` on Linux without a GPU, with the solutions in the exercises' cells. *Not run:*
Colab, VS Code, and a notebook with a GPU ([what ran on one](../../docs/operate/gpu.md#what-is-proven)).
"""
BADGE = "[![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)]({})"
GROWS = "!cat my/scheduler.py"


def notebook(lab: Path, address: str) -> str:
    """The notebook of a lesson, as JSON. ``address``: of the public repository; "" if there is none."""
    declared = load_catalog(Workspace(ROOT, ROOT / ".cache")).lab(lab.name)
    vllm = "engine" in declared.declared and declared.declared["engine"].default["cpu"] == "vllm"
    install = INSTALL.format(
        address=address, short=declared.short, vllm=VLLM * vllm, vllm_note="vLLM: 0.7 GB more. " * vllm
    )
    text = (lab / "README.md").read_text(encoding="utf-8")
    text = RUN.sub(lambda found: _cells(found[0]), text)
    text = text.replace("\n## ", f"\n{WHERE.format(colab=_colab(lab, address))}\n## ", 1)
    shown = f"{SHOWN}\n{_cell(SHOW.format(folder=lab.name))}\n"
    text = text.replace("\n## Run it\n", f"\n{_cell(install)}\n## Run it\n")
    text = text.replace("\n## What you see\n", f"\n{shown}\n## What you see\n")
    text = text.replace(f"results/{lab.name}/TIME", "{newest}").replace("\n```bash\n", "\n```console\n")
    before, heading, after = text.partition("\n## Exercises\n")
    block, _, after = after.partition("\n## Where next\n")
    exercises = "".join(_exercise(lab, id) for id in re.findall(r"exercise start (\w+)", block))
    exercises += "".join(f"\n{fold}\n" for fold in re.findall(r"<details>.*?</details>", block, re.S))
    text = f"{before}{heading}{exercises}\n{OWN}\n{_cell(ASK)}\n## Where next\n{after}"
    made = jupytext.reads(PICTURE.sub(lambda found: f"{found[1]}({_data(lab / found[2])})", text), fmt="md")
    made.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    for number, cell in enumerate(made.cells):
        cell.id = f"cell-{number}"
        cell.metadata = {}
    return json.dumps(made, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def _cells(section: str) -> str:
    """A section of a lesson with its commands as cells."""

    def cell(block: re.Match[str]) -> str:
        commands = re.sub(r"\s+#.*$", "", block[1], flags=re.M)
        commands = re.sub(r"^(labctl run \w+)", r"\1 {RUN}", commands, flags=re.M)
        return _cell("".join(f"!{line}\n" for line in commands.splitlines()))

    return BLOCK.sub(cell, section)


def _cell(code: str) -> str:
    return f"```python\n{code.strip()}\n```\n"


def _exercise(lab: Path, id: str) -> str:
    (folder,) = (lab / "exercises").glob(f"{id}-*")
    manifest = yaml.safe_load((folder / "exercise.yaml").read_text(encoding="utf-8"))
    task = (folder / "task.md").read_text(encoding="utf-8")
    starters = ""
    for name in manifest["files"]:
        if manifest.get("grows") and name == "scheduler.py":
            starters += f"\nOpen `my/scheduler.py` in the list of files, and edit it there: it grows.\n\n{_cell(GROWS)}"
        else:
            text = (folder / "starter" / name).read_text(encoding="utf-8")
            starters += _cell(f"%%writefile exercises/{id}/{name}\n{text}")
    return (
        f"\n### {id}: {manifest['title']} ({manifest['minutes']} min)\n\n{task}\n"
        f"{_cell(f'!labctl exercise start {id}')}{starters}{_cell(f'!labctl exercise check {id}')}"
        f"\nStuck? `!labctl exercise hint {id}`\n"
    )


def _data(path: Path) -> str:
    """A picture as an address that holds it: Colab neither follows relative paths nor reads attachments."""
    return f"data:image/{path.suffix[1:]};base64,{base64.b64encode(path.read_bytes()).decode()}"


def _colab(lab: Path, address: str) -> str:
    if not address.startswith("https://github.com/"):
        return "In Colab, upload it, and name in the first cell where to clone the labs from."
    place = address.removeprefix("https://").removesuffix(".git").replace("github.com", "github", 1)
    return BADGE.format(f"https://colab.research.google.com/{place}/blob/main/labs/{lab.name}/notebook.ipynb")


def public_address() -> str:
    """The address that README.md tells people to clone; "" while it names none."""
    found = ADDRESS.search((ROOT / "README.md").read_text(encoding="utf-8"))
    return found[1] if found else ""


def main(check: bool) -> int:
    """Write every notebook; with ``check`` only compare, and name each that differs from its lesson."""
    differs = 0
    for number in LABS:
        (lab,) = (ROOT / "labs").glob(f"{number}-*")
        path, text = lab / "notebook.ipynb", notebook(lab, public_address())
        if check and (not path.is_file() or path.read_text(encoding="utf-8") != text):
            print(f"{path.relative_to(ROOT)} differs from its lesson: make notebooks", file=sys.stderr)
            differs = 1
        elif not check:
            path.write_text(text, encoding="utf-8")
    return differs


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
