"""The issue museum on a real Triton: each fault is there, each work-around avoids it, and nothing is left of a server.

An exhibit that is ``mended`` fails here and names the work-around that can go.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from checkout import ROOT
from machinery import labctl, processes_about, started
from waiting import eventually

from labctl.museum.exhibit import Exhibit, find_exhibits
from labctl.museum.visit import MENDED, PASSES, REPRODUCES, reproduce_exhibit
from labctl.runtimes import bare, wheel
from labctl.runtimes.leftovers import SHM
from labctl.stack import ports
from labctl.triton import readiness
from labctl.workspace import Workspace

EXHIBITS = find_exhibits(Workspace(ROOT, ROOT))
SERVER = str(wheel.find_wheel().binary)


pytestmark = pytest.mark.night
# In two groups, for two workers.
CASES = [
    pytest.param(exhibit, id=exhibit.name, marks=pytest.mark.xdist_group(f"museum-{number % 2}"))
    for number, exhibit in enumerate(EXHIBITS)
]


@pytest.mark.parametrize("exhibit", CASES)
def test_the_fault_is_still_there(exhibit: Exhibit, own: Path, cache: Path) -> None:
    visit = reproduce_exhibit(Workspace(own, cache), exhibit)
    workaround = exhibit.manifest.workaround
    where = f", used in: {workaround.used}" if workaround.used else ""
    gone = f"the work-around can go ({workaround.text}{where})" if visit.verdict == MENDED else visit.measured
    assert visit.verdict == REPRODUCES, f"{visit.number} on Triton {visit.triton}: {visit.verdict}; {gone}"


@pytest.mark.parametrize("exhibit", CASES)
def test_the_workaround_avoids_the_fault(exhibit: Exhibit, own: Path, cache: Path) -> None:
    visit = reproduce_exhibit(Workspace(own, cache), exhibit, workaround=True)
    assert visit.verdict == PASSES, visit.measured


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_exhibit_leaves_no_server_no_shared_memory_and_no_folder(
    number: signal.Signals, own: Path
) -> None:
    with started(own, "reproduce", "server#8358") as process:  # a server that forks its stub has two lines
        server, *_ = eventually(lambda: [line for line in processes_about(own) if line.startswith(SERVER)])
        prefix = re.search(r"shm-region-prefix-name=(\S+)", server)
        assert prefix
        eventually(lambda: list(SHM.glob(f"{prefix[1]}*")))
        os.killpg(process.pid, number) if number == signal.SIGINT else process.send_signal(number)
        assert process.wait(60) == {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -9}[number]
        eventually(lambda: not processes_about(own))
    labctl("reproduce", "list", root=own)  # as any command does, it removes what a killed one left
    assert not list(SHM.glob(f"{prefix[1]}*"))
    assert not list((own / ".labs" / "museum").iterdir())


def test_all_runs_exhibits_in_processes_of_their_own_and_counts_the_verdicts(own: Path) -> None:
    """Two exhibits of a smaller museum, at the same time."""
    museum = own / "labs" / "extras" / "museum"
    (own / "labs").unlink()
    museum.mkdir(parents=True)
    for name in ("core-425", "server-6366", "sleeper.py"):
        (museum / name).symlink_to(ROOT / "labs" / "extras" / "museum" / name)
    done = labctl("reproduce", "all", "--json", root=own)
    assert {visit["number"]: visit["verdict"] for visit in json.loads(done.stdout)} == {
        "core#425": REPRODUCES,
        "server#6366": REPRODUCES,
    }


def test_the_text_for_upstream_reproduces_as_it_stands(tmp_path: Path, cache: Path) -> None:
    text = (ROOT / "labs" / "extras" / "museum" / "upstream" / "iterative-slots.md").read_text()
    config, model, client = re.findall(r"```(?:text|python)\n(.*?)```", text, re.DOTALL)
    folder = tmp_path / "repository" / "steps" / "1"
    folder.mkdir(parents=True)
    (folder / "model.py").write_text(model)
    (folder.parent / "config.pbtxt").write_text(config)
    (tmp_path / "client.py").write_text(client)
    (endpoints,) = ports.free_endpoints(1)
    with bare.local(Workspace(tmp_path, cache), "museum", tmp_path, endpoints, []) as server:
        readiness.wait_ready(
            endpoints.http,
            ["steps"],
            {},
            readiness.ServerOutside(lambda: server.ended() or None, lambda: [server.log()]),
            timeout=90,
            progress=lambda text: None,
        )
        said = subprocess.run(
            [sys.executable, tmp_path / "client.py", endpoints.grpc],
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        )
    assert said.stdout == "no answer\n"
