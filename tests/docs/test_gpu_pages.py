"""The five pages for the GPUs that people have: each command is run as the page has it, with stand-ins for hardware.

For a command that needs a GPU (`labctl run`, `labctl up`), doctor checks the card that the page names.
"""

from __future__ import annotations

import itertools
import re
import shlex
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest
import yaml
from checkout import ROOT
from gpu_machine import machine_fixture
from gpu_stand_ins import calls, checkout, installed

from labctl.catalog import load_catalog
from labctl.doctor.gpu import gpu_checks
from labctl.options import Options
from labctl.plan import make_plan
from labctl.settings import parse_assignments
from labctl.workspace import Workspace

__all__ = ("machine_fixture",)
PAGES = ("operate/gpu-card", "operate/gpu-notebook", "guide/offline", "operate/gpu-slurm", "operate/gpu-kubernetes")
SCREEN = 72  # lines
BLOCK = re.compile(r"^( *)```bash\n(.*?)^\1```$", re.M | re.S)
RTX = "NVIDIA GeForce RTX {}, 8.9, 580.82.07, {}"
CARDS = {8: RTX.format(4060, "8188, 7900"), 16: RTX.format(4080, "16376, 16000"), 24: RTX.format(4090, "24564, 24100")}
T4, L4 = "Tesla T4, 7.5, {}, 15360, 15100", "NVIDIA L4, 8.9, {}, 23034, 22500"
H100 = "NVIDIA H100 80GB HBM3, 9.0, 580.82.07, 81559, 81000"
CATALOG = load_catalog(Workspace(ROOT, ROOT / "unused"))


def text(page: str) -> str:
    return (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")


def blocks(page: str) -> list[str]:
    """The commands of a page, block by block."""
    return [block for _, block in BLOCK.findall(text(page))]


def walk(part: Iterable[str], where: Path, env: dict[str, str]) -> None:
    """Run blocks in one shell, as a person pastes them."""
    script = "set -euo pipefail\n" + "\n".join(re.sub(r"  +# .*$", "", block, flags=re.M) for block in part)
    done = subprocess.run(["bash", "-c", script], cwd=where, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def starts(commands: Iterable[str], card: str, machine: object, cache: Path) -> int:
    """How many commands run a lab; each of its stacks has room on the card."""
    assert callable(machine)
    machine(card)
    workspace, count = Workspace(ROOT, cache), 0
    for line in "\n".join(commands).splitlines():
        words = shlex.split(line, comments=True)
        words = words[next((at for at, word in enumerate(words) if word.endswith("labctl")), len(words)) :]
        if words[1:2] not in (["run"], ["up"]):
            continue
        count += 1
        lab = CATALOG.lab(words[2]) if words[1] == "run" else CATALOG.stack(words[2])[0]
        asked = parse_assignments(tuple(after for at, after in itertools.pairwise(words) if at == "--set"))
        for stack in lab.stacks:
            plan = make_plan(workspace, lab, stack, Options("gpu", asked))
            rows = {row.name: row for row in gpu_checks(plan, "local", workspace)}
            assert rows["GPU memory"].state == "ok", (line, rows["GPU memory"])
            assert rows["NVIDIA driver"].state == rows["GPU"].state == "ok"
    return count


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_one_screen_and_every_page_and_the_index_lead_there(page: str) -> None:
    assert len(text(page).splitlines()) <= SCREEN
    name = page.rpartition("/")[2]
    assert f"{name}.md)" in text("operate/gpu") and f"{name}.md)" in text("README")


def test_a_card_at_home(machine: object, tmp_path: Path) -> None:
    env = installed(tmp_path / "here", CARDS[24])
    walk(blocks("operate/gpu-card"), tmp_path, env)
    said = (tmp_path / "here" / "said").read_text()
    assert re.search(r"ok +GPU memory .*needed 1\.7 GB", said) and re.search(r"ok +NVIDIA driver +580", said)
    *usual, large, small = blocks("operate/gpu-card")
    assert starts([*usual, large], CARDS[24], machine, tmp_path) == 6
    for card in (8, 16):
        assert starts([*usual, small], CARDS[card], machine, tmp_path) == 6


@pytest.mark.parametrize("driver", ["550.54.15", "580.95.05"])
def test_a_notebook(machine: object, tmp_path: Path, driver: str) -> None:
    env = installed(tmp_path / "here", T4.format(driver))
    look, package, install, small, large = blocks("operate/gpu-notebook")
    walk([look, *([package] if driver < "580" else []), install, small], tmp_path, env)
    assert re.search(r"ok +NVIDIA driver +580.95.05", (tmp_path / "here" / "said").read_text())
    assert starts([small], T4.format("580.95.05"), machine, tmp_path) == 2
    assert starts([small, large], L4.format("580.95.05"), machine, tmp_path) == 3


def test_a_notebook_with_a_driver_before_cuda_12_is_refused_before_the_download(tmp_path: Path) -> None:
    env = installed(tmp_path / "here", T4.format("520.61.05"))
    look, _, install, *_ = blocks("operate/gpu-notebook")
    with pytest.raises(AssertionError, match="driver"):
        walk([look, install], tmp_path, env)
    assert [path for path in (tmp_path / "here" / "cache" / "layers").iterdir() if path.is_dir()] == []


def test_a_box_without_a_network(machine: object, tmp_path: Path) -> None:
    env = installed(tmp_path / "here", H100)
    clone, box = checkout(tmp_path / "triton-serving-labs"), tmp_path / "box"
    box.mkdir()
    (clone / ".venv" / "bin").mkdir(parents=True)
    for name in ("labctl", "pip"):
        (clone / ".venv" / "bin" / name).symlink_to(tmp_path / "here" / "bin" / name)
    pack, unpack, gpu, save, load = blocks("guide/offline")
    walk([pack.replace("requirements/labs.txt", "requirements/labs.txt requirements/vllm-gpu.txt")], clone, env)
    downloads = [words[-1] for words in calls(tmp_path / "here", "pip") if words[1] == "download"]
    assert [name.rpartition("/")[2] for name in downloads][1:] == ["labs.txt", "vllm-gpu.txt"], "and PyTorch"
    (tmp_path / "labs.tar").rename(box / "labs.tar")
    walk([unpack, gpu], box, env)
    assert (box / "wheels").is_dir() and not (box / "triton-serving-labs" / "results").exists()
    assert starts([gpu], H100, machine, tmp_path) == 1
    walk([save], clone, env)
    (tmp_path / "images.tar").rename(box / "images.tar")
    walk([load], box, env)
    assert calls(tmp_path / "here")[-1][:3] == ["labctl", "up", "inflight-batching"]


def test_a_slurm_node(machine: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    env = installed(tmp_path / "here", H100) | {"HOME": str(tmp_path)}
    clone = checkout(tmp_path / "triton-serving-labs")
    login, node, *image = blocks("operate/gpu-slurm")
    walk([login, node], clone, env)
    assert re.search(r"ok +GPU memory", (tmp_path / "here" / "said").read_text())
    assert starts([node], H100, machine, tmp_path) == 1
    walk(image, clone, env)
    mounts = next(words[4] for words in calls(tmp_path / "here", "apptainer") if words[1] == "exec")
    assert mounts == f"{clone}:{clone}"
    configs = "".join(path.read_text() for path in (clone / "repository").glob("*/config.pbtxt"))
    named = re.findall(r'"(/[^"]+)"', configs)
    assert named and all(path.startswith(f"{clone}/") for path in named), "every folder that the models name is mounted"
    pod = yaml.safe_load((ROOT / "deploy/kubernetes/deployment.yaml").read_text())["spec"]["template"]["spec"]
    served = [words[words.index("serve") + 1 :] for words in calls(tmp_path / "here") if "serve" in words]
    assert {words[0] for words in served} == {f"--model-repository={clone}/repository"}
    assert [words for words in served if words[1:] != pod["containers"][0]["args"][1:]] == [], "as in a pod"


def test_kubernetes(tmp_path: Path) -> None:
    env = installed(tmp_path / "here", H100)
    clone = checkout(tmp_path / "triton-serving-labs")

    walk(blocks("operate/gpu-kubernetes"), clone, env)
    images = [words[words.index("-t") + 1] for words in calls(tmp_path / "here", "docker") if "-t" in words]
    kustomization = yaml.safe_load((ROOT / "deploy/kubernetes-gpu/kustomization.yaml").read_text())
    (image,) = kustomization["images"]
    assert images == [f"{image['name']}:{image['newTag']}"]
    configs = "".join(path.read_text() for path in (clone / "repository").glob("*/config.pbtxt"))
    assert "KIND_GPU" in configs
