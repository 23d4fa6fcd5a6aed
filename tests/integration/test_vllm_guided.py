"""my/scheduler.py inside vLLM's own scheduler, over an engine that computes nothing."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
import vllm_traffic
from layer import require_vllm

from labctl.recordings.vllm import _read_first

pytestmark = [pytest.mark.night, pytest.mark.xdist_group("vllm")]
HEAD = "from labsched import scheduler\n\n\nclass Scheduler(scheduler.Scheduler):\n"
NEWEST_FIRST = f"{HEAD}    def line(self):\n        return list(reversed(self.waiting))\n"
OLDEST_GOES = f"{HEAD}    def victim(self):\n        return self.running[0]\n"


def test_line_and_victim_decide_in_vllm_and_a_file_without_them_changes_nothing(cache: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, spawn, initializer=_read_first, initargs=(str(require_vllm(cache)),)) as pool:
        plain, newest, oldest = pool.map(vllm_traffic.guided, [f"{HEAD}    pass\n", NEWEST_FIRST, OLDEST_GOES])
    assert plain[0][0] == oldest[0][0] == ["0", "1", "2"]
    assert plain[1][0] == ["2"], "vLLM preempts the last of its running requests"
    assert newest[0][:2] == [["6", "5", "4"], ["3"]]
    assert oldest[1][0] == ["0"]
