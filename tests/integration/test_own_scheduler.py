"""A scheduler of one's own on a real server: served, edited, loaded again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from machinery import copy_of_the_checkout, labctl, taken_down

pytestmark = pytest.mark.xdist_group("own-scheduler")
STACK, FILE = "inflight-batching", "my/scheduler.py"
HEAD = "from labsched import scheduler\n\n\nclass Scheduler(scheduler.Scheduler):\n"
ONE = f"{HEAD}    @property\n    def places(self):\n        return 1 - len(self.running)\n"
BROKEN = f"{HEAD}    @property\n    def places(self):\n        return 1 // 0\n"
HALF = f"{HEAD}    def share(self, budget, decoding, left):\n        return [-(-need // 2) for need in left]\n"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    root = copy_of_the_checkout(tmp_path_factory.mktemp("learner") / "checkout")
    (root / FILE).parent.mkdir()
    (root / FILE).write_text(ONE)
    settings = (f"scheduler={FILE}", "model=random:tiny-llama", "max_num_sequences=4")
    chosen = [word for setting in settings for word in ("--set", setting)]
    try:
        labctl("up", STACK, *chosen, "--runtime", "local", "--ports", "auto", root=root)
        yield root
    finally:
        taken_down(root)


def ask(root: Path) -> Any:
    return labctl("infer", STACK, "-m", "ensemble", "-p", "The fox", "-o", "4", root=root, check=False)


def load(root: Path, text: str) -> None:
    (root / FILE).write_text(text)
    assert labctl("reload", STACK, root=root).stdout.strip() == "loaded: tensorrt_llm"


def test_a_file_of_ones_own_decides_who_may_join(root: Path) -> None:
    """It lets one request run at a time, where four could."""
    bench = ("bench", STACK, "--concurrency", "4", "--request-count", "8", "--output-tokens", "8", "--json")
    labctl(*bench, root=root)
    (log,) = (root / ".labs" / STACK / "run").glob("steps-tensorrt_llm-*.jsonl")
    steps = [json.loads(line) for line in log.read_text().splitlines()]
    steps = [step for step in steps if step.get("kind") == "step"]
    assert len(steps) >= 64
    assert {len(step["ids"]) for step in steps} == {1}
    assert {step["why"] for step in steps if step.get("queue")} == {"batch closed"}


def test_an_edit_is_loaded_and_its_mistake_told_with_its_line(root: Path) -> None:
    load(root, BROKEN)
    assert "scheduler.py, line 7: ZeroDivisionError" in ask(root).stderr
    load(root, HALF)
    assert "share returned" in ask(root).stderr, "the engine shares a step by itself"
    load(root, ONE)
    assert ask(root).returncode == 0
