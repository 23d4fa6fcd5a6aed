"""A server whose GPU is lost ends, so that everyone sees it, and a restart brings it back."""

from __future__ import annotations

import shutil
from pathlib import Path

from machinery import labctl
from own_stack import leftovers, shown, state
from waiting import eventually

STACK = "inflight-batching"
# A step that fails as on a GPU, from when a file is there.
SCHEDULER = """
from pathlib import Path
from labsched.scheduler import Scheduler as Theirs


class Scheduler(Theirs):
    def step(self, plan=None):
        if Path({fault!r}).exists():
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return super().step(plan)
"""


def test_a_lost_device_ends_the_server_and_a_restart_brings_it_back(own: Path, tmp_path: Path) -> None:
    repos, fault = own / "model_repos", tmp_path / "fault"
    shipped = repos.resolve()
    repos.unlink()
    shutil.copytree(shipped, repos)
    beside = repos / "llm" / "tensorrt_llm" / "1" / "scheduler.py"
    beside.write_text(SCHEDULER.format(fault=str(fault)))
    small = ("--set", "model=shipped:tiny-llama", "--set", "engine=transformers")
    labctl("up", STACK, "--runtime", "local", "--ports", "auto", *small, root=own)
    fault.touch()
    asked = labctl("infer", STACK, "-p", "Hello", root=own, check=False)
    assert asked.returncode == 1 and "CUDA error" in asked.stderr
    eventually(lambda: state(own, STACK) == "failed")
    assert "the engine is dead (CUDA error" in shown(own, STACK)["ended"]
    assert "the engine is dead (CUDA error" in labctl("logs", STACK, root=own).stdout
    fault.unlink()
    labctl("restart", STACK, root=own)
    assert shown(own, STACK)["state"] == "ready"
    labctl("down", STACK, root=own)
    assert leftovers(own, STACK) == []
