"""vLLM's engine in two ranks, each a process with its share of every layer, on a real Triton without a GPU."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from layer import require_vllm
from machinery import labctl
from own_stack import leftovers, shown, state
from waiting import eventually

from labctl.runtimes import groups
from labctl.workspace import Workspace
from labkit.client.trtllm import EngineStream

pytestmark = [pytest.mark.night, pytest.mark.xdist_group("vllm")]
STACK = "inflight-batching"
# Sizes that two can share; the shipped model's layers have an odd number of rows.
SETTINGS = ("engine=vllm", "model=random:llama-100m", "exact=true", "kv_cache_memory_mib=256", "max_num_sequences=4")
PROMPTS = [[3 + (start * 37 + index * index) % 300 for index in range(40)] for start in range(3)]


@pytest.fixture
def stack(own: Path, cache: Path) -> Iterator[Path]:
    require_vllm(cache)
    yield own
    labctl("down", STACK, root=own)


def up(root: Path, ranks: int) -> None:
    pairs = [word for setting in (*SETTINGS, f"tp_size={ranks}") for word in ("--set", setting)]
    labctl("up", STACK, "--runtime", "local", "--ports", "auto", *pairs, root=root)


def answers(root: Path) -> list[list[int]]:
    """The tokens of the answers to three prompts that are sent together."""
    with EngineStream(shown(root, STACK)["endpoints"]["grpc"]) as stream:
        records = [stream.ask(prompt, 16) for prompt in PROMPTS]
        for record in records:
            stream.wait(record, timeout=120)
    assert not any(record.error for record in records)
    return [[int(id) for _, text in record.responses for id in text.split()] for record in records]


def ranks(root: Path) -> list[psutil.Process]:
    """The processes of the ranks, by the names that vLLM gives them."""
    members = [one for group in groups.groups(Workspace(root, root).folder(STACK)) for one in group.members()]
    return [process for process in members if any("Worker_TP" in word for word in process.cmdline())]


def shared_memory() -> set[str]:
    """vLLM's regions: of its message queues and of what ranks exchange."""
    return {path.name for path in Path("/dev/shm").iterdir() if path.name.startswith(("psm_", "vllm_"))}


def test_two_ranks_answer_as_one_and_down_leaves_neither_process_nor_memory(stack: Path) -> None:
    before = shared_memory()
    up(stack, 1)
    alone = answers(stack)
    assert ranks(stack) == []
    labctl("down", STACK, root=stack)
    up(stack, 2)
    both = ranks(stack)
    assert len(both) == 2
    assert answers(stack) == alone
    labctl("down", STACK, root=stack)
    assert leftovers(stack, STACK) == []
    assert not any(process.is_running() for process in both)
    assert shared_memory() <= before


def test_a_killed_rank_is_a_dead_engine_and_a_restart_brings_both_back(stack: Path) -> None:
    before = shared_memory()
    up(stack, 2)
    both, said = ranks(stack), answers(stack)
    both[1].send_signal(signal.SIGKILL)
    eventually(lambda: state(stack, STACK) == "failed")
    eventually(lambda: not both[0].is_running())
    labctl("restart", STACK, root=stack)
    assert answers(stack) == said
    labctl("down", STACK, root=stack)
    assert leftovers(stack, STACK) == []
    assert shared_memory() <= before
