"""The commands of a guide, pasted: each block answers, with a number where it asks for one."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from checkout import ROOT
from layer import REQUIRED, require_vllm
from recordings import made_up_recording, written
from waiting import eventually

BLOCK = re.compile(r"(?:^(?: {4}| {7}).+\n)+", re.M)
NUMBER = re.compile(r"\d")
ANSWER = re.compile(r"^labctl (predict|plan) ")


def blocks(page: str) -> list[str]:
    """The commands of labctl in a page's indented blocks and in its tables, one each; a trailing backslash joins."""
    text = (ROOT / "docs" / "guide" / page).read_text(encoding="utf-8")
    found = [line.strip() for block in BLOCK.findall(text) for line in block.replace("\\\n", " ").splitlines()]
    found += re.findall(r"^\|.*\| `(labctl [^`]+)`", text, re.M)
    return [line for line in found if line.startswith("labctl ")]


def answers(page: str) -> list[str]:
    """The commands that predict from a recording, without those that need a server."""
    return [line for line in blocks(page) if ANSWER.match(line) and "--run" not in line]


def run(line: str) -> str:
    argv = [sys.executable, "-m", "labctl", *shlex.split(line)[1:]]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    yield written(tmp_path_factory.mktemp("guide"), made_up_recording()).parent


def test_the_prediction_guide_has_blocks_to_paste() -> None:
    assert len(answers("prediction.md")) >= 4


@pytest.mark.parametrize("line", answers("prediction.md"))
def test_each_block_of_the_prediction_guide_gives_a_number(line: str, recording: Path) -> None:
    """On a recording of made-up requests; the names that stand for something are filled in."""
    line = re.sub(r"results/05-batching-policies/TIME|\bRESULT\b", str(recording), line)
    line = line.replace("--set ...", "--set scheduling=shortest_first")
    said = run(line if line.startswith("labctl plan") else f"{line} -y")
    assert NUMBER.search(said) and "no answer" not in said


# -- your own vLLM -----------------------------------------------------------------------------------------------------

OWN = "your-own-vllm.md"
SERVES = {  # what a quiet start on two cores needs, beside the guide's own line
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "GLOO_SOCKET_IFNAME": "lo",
    "HF_HUB_OFFLINE": "1",
    "TORCH_COMPILE_DISABLE": "1",
    "PYTHONPATH": str(ROOT / "src"),  # in the place of `pip install ./packaging/labsched`
}


HTTP = (  # what vLLM's own HTTP server imports, and the layer of the labs is without (requirements/vllm)
    *("jmespath==1.1.0", "mcp==2.3.0", "model-hosting-container-standards==0.1.16"),
    *("prometheus-fastapi-instrumentator==8.1.0", "watchfiles==1.3.0"),
)
COMMAND = """#!/bin/sh
PYTHONPATH={packages}:$PYTHONPATH exec {python} -P -c 'from vllm.entrypoints.cli.main import main; main()' "$@"
"""


@pytest.fixture
def vllm(cache: Path, tmp_path: Path) -> str:
    """The command: LABS_VLLM_COMMAND, or the one in PATH, or one of the labs' own packages of vLLM."""
    layer = require_vllm(cache)
    if found := os.environ.get("LABS_VLLM_COMMAND") or shutil.which("vllm"):
        return found
    http, command = tmp_path / "http", tmp_path / "vllm"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(http), *HTTP]
    done = subprocess.run(pip, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        why = f"vLLM's HTTP server lacks packages: {done.stderr[-500:]}"
        pytest.fail(why) if os.environ.get(REQUIRED) else pytest.skip(why)
    # vLLM asks for the version of a package `vllm`, with "cpu" in it; the build for CPUs has another name.
    (own,) = layer.glob("vllm_cpu-*.dist-info")
    version = own.name.removeprefix("vllm_cpu-").removesuffix(".dist-info")
    (named := http / f"vllm-{version}+cpu.dist-info").mkdir()
    (named / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n", encoding="utf-8")
    command.write_text(COMMAND.format(packages=f"{layer}:{http}", python=sys.executable))
    command.chmod(0o755)
    return str(command)


def example(beginning: str) -> list[str]:
    """The one line of the guide's worked example that begins so, as words."""
    text = (ROOT / "docs" / "guide" / OWN).read_text(encoding="utf-8").partition("## A worked example")[2]
    lines = [line.strip() for line in text.replace("\\\n", " ").splitlines()]
    (found,) = [line for line in lines if line.startswith(beginning)]
    return shlex.split(found)


@contextlib.contextmanager
def served(argv: list[str], env: dict[str, str], log: Path) -> Iterator[str]:
    """A server of vLLM on a free port of loopback, once it answers: its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    with log.open("w") as out:
        where = ["--host", "127.0.0.1", "--port", str(port)]
        child = subprocess.Popen([*argv, *where], cwd=ROOT, env={**os.environ, **env}, stdout=out, stderr=out)

    def healthy() -> bool:
        assert child.poll() is None, log.read_text()[-2000:]
        try:
            with urllib.request.urlopen(f"{address}/health", timeout=5) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    try:
        eventually(healthy, 600)
        yield address
    finally:
        child.terminate()
        child.wait(60)


@pytest.mark.night
def test_the_worked_example_of_your_own_vllm_gives_its_answers(vllm: str, tmp_path: Path) -> None:
    folder = tmp_path / "labs"
    _, command, *serve = example("LABS_RECORD=")
    assert command == "vllm"
    env = {**SERVES, "LABS_RECORD": str(folder)}
    with served([vllm, *serve], env, tmp_path / "log") as address:
        bench = [vllm, *example("vllm bench serve")[1:], "--base-url", address]
        subprocess.run(bench, cwd=ROOT, env={**os.environ, **SERVES}, check=True, timeout=600)
    for line in (shlex.join(example("labctl explain")), shlex.join(example("labctl predict"))):
        said = run(line.replace("/tmp/labs", str(folder)))
        assert NUMBER.search(said) and "no answer" not in said
