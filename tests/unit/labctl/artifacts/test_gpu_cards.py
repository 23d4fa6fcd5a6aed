"""Which lab starts on which card: what the checklist, ``engines install`` and ``up`` say, with a stand-in driver.

The gigabytes are computed by hand: parameters as transformers counts them in the architecture, times two bytes; 1.7 GB
for vLLM's CUDA, graphs and activations, 0.5 for each other process; tokens of the cache times the bytes of their keys
and values.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import pytest
from checkout import ROOT
from gpu_machine import machine_fixture, workspace_fixture
from lab_errors import lab_error

from labctl.catalog import load_catalog
from labctl.doctor.gpu import gpu_checks
from labctl.doctor.machine import DoctorCheck
from labctl.listener import Silent
from labctl.options import Options
from labctl.plan import Plan, make_plan
from labctl.runtimes.layers import Layer, gpu_layer
from labctl.stack.build import check_machine, refuse_unservable
from labctl.stack.session import Session
from labctl.workspace import Workspace

__all__ = ("machine_fixture", "workspace_fixture")

CARDS = {  # what nvidia-smi says: name, compute capability, driver, MiB in all and free
    8: "NVIDIA GeForce RTX 4060, 8.9, {}, 8188, 7900",
    16: "Tesla T4, 7.5, {}, 15360, 15100",
    24: "NVIDIA GeForce RTX 4090, 8.9, {}, 24564, 24100",
    48: "NVIDIA L40S, 8.9, {}, 46068, 45500",
    80: "NVIDIA H100 80GB HBM3, 9.0, {}, 81559, 81000",
}
CATALOG = load_catalog(Workspace(ROOT, ROOT / "unused"))
SMALL = {"model": "random:llama-100m"}
# Of each stack of labs 02 to 08: settings, and the gigabytes that it needs on cards of 8, 16, 24, 48 and 80 GB; what is
# negative does not fit. Where a cache takes what is free, the sum follows the card.
NEEDED: list[tuple[str, dict[str, Any], tuple[float, ...]]] = [
    ("iterative", {}, (1.0, 1.0, 1.0, 1.0, 1.0)),  # 2 x 0.5; 16 sequences of 1,024 tokens of 2.5 kB
    ("iterative", {"model": "random:gpt2", "max_batch_size": 64}, (6.3, 6.3, 6.3, 6.3, 6.3)),  # 0.5 + 1.0 + 4.8
    ("llama", {}, (-47.4, -47.4, -47.4, 47.4, 47.4)),  # 3 x 13.48 + 2.7 + 8,192 x 0.5 MiB
    ("llama", SMALL, (3.6, 3.6, 3.6, 3.6, 3.6)),
    ("vllm-backend", {}, (-17.3, -17.3, 21.9, 41.1, 72.7)),  # 0.85 of the card, and at least one request of 4,096
    ("vllm-backend", SMALL, (7.3, 13.7, 21.9, 41.1, 72.7)),
    ("codegen", {}, (0.8, 0.8, 0.8, 0.8, 0.8)),  # 0.5; 64 rows of 1,024 tokens of 4 kB
    ("codegen", {"model": "random:codegen-350m"}, (6.2, 6.2, 6.2, 6.2, 6.2)),  # 1.43 in fp32, 0.5, and 4 GiB at most
    ("inflight-batching", {}, (-17.3, -17.3, 24.3, 32.4, 32.4)),  # 13.48 + 1.7; 8 requests of 4,096 at most
    ("static-batching", {}, (-17.3, -17.3, 24.3, 32.4, 32.4)),
    ("inflight-batching", SMALL, (2.5, 2.5, 2.5, 2.5, 2.5)),
    ("modern", {}, (-17.3, -17.3, 24.3, 44.5, 78.0)),  # 64 requests: nine tenths of what is free
    ("modern", SMALL, (6.3, 6.3, 6.3, 6.3, 6.3)),
    ("two-schedulers", {}, (1.7, 1.7, 1.7, 1.7, 1.7)),
]
ROWS = [(name, settings, card, sums[at]) for name, settings, sums in NEEDED for at, card in enumerate(CARDS)]


def usual(workspace: Workspace, stack: str, settings: dict[str, Any]) -> Plan:
    """The plan of a stack with the gpu profile's own engine."""
    lab, name = CATALOG.stack(stack)
    return make_plan(workspace, lab, name, Options("gpu", settings))


def rows(plan: Plan, workspace: Workspace) -> dict[str, DoctorCheck]:
    return {check.name: check for check in gpu_checks(plan, "local", workspace)}


@pytest.fixture
def plenty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("labctl.doctor.gpu.available_memory", lambda: 256 * 10**9)


@pytest.mark.usefixtures("plenty")
@pytest.mark.parametrize(("stack", "settings", "card", "needed"), ROWS)
def test_what_a_stack_needs_on_a_card_and_whether_it_starts(
    machine: Any, workspace: Workspace, stack: str, settings: dict[str, Any], card: int, needed: float
) -> None:
    machine(CARDS[card].format("580.82.07"))
    plan = usual(workspace, stack, settings)
    check = rows(plan, workspace)["GPU memory"]
    assert (check.state, f"needed {abs(needed)} GB" in check.found) == ("ok" if needed > 0 else "fail", True), check
    Layer("vllm", workspace, gpu=True).path.mkdir(parents=True)
    session = Session(workspace, CATALOG, Silent())
    runtime = session.choose("local", "gpu")
    refuse_unservable(plan, runtime, workspace)
    if needed > 0:
        check_machine(session, plan, runtime)
        return
    with lab_error("check-failed", check.found, "--set model=random:llama-100m"):
        check_machine(session, plan, runtime)
    assert rows(usual(workspace, stack, SMALL), workspace)["GPU memory"].state == "ok", "the remedy is none"


class Heard(Silent):
    """``commands``: what was run, such as pip."""

    def __init__(self) -> None:
        self.commands: list[Sequence[str]] = []

    def command(self, argv: Sequence[str], *_: object) -> None:
        self.commands.append(argv)


@pytest.mark.parametrize("card", CARDS)
@pytest.mark.parametrize(
    ("driver", "vllm"), [("520.61.05", ""), ("550.163.01", "0.19.1"), ("570.172.08", "0.19.1"), ("580.82.07", "0.32.0")]
)
def test_the_driver_chooses_the_build_on_every_card_and_without_one_each_of_the_three_refuses(
    machine: Any, workspace: Workspace, card: int, driver: str, vllm: str
) -> None:
    machine(CARDS[card].format(driver))
    layer, heard, old = gpu_layer(workspace), Heard(), not vllm
    for stack in [*dict.fromkeys(name for name, *_ in NEEDED), "scaled"]:
        check = rows(usual(workspace, stack, {}), workspace)["NVIDIA driver"]
        assert check.state == ("fail" if old else "ok"), stack
    if old:
        with lab_error("nvidia-driver-too-old", "580.65.06"):
            layer.install(heard)
        assert heard.commands == [], "nothing is downloaded"
    else:
        assert f"\nvllm=={vllm} " in layer.lock.read_text()
    layer.path.mkdir(parents=True)
    with lab_error("nvidia-driver-too-old", driver, "LD_LIBRARY_PATH", "--profile cpu") if old else nullcontext():
        Session(workspace, CATALOG, Silent()).choose("local", "gpu")


def test_lab_07_has_no_model_on_a_gpu(machine: Any, workspace: Workspace) -> None:
    machine(CARDS[8].format("580.82.07"))
    assert "GPU memory" not in rows(usual(workspace, "scaled", {}), workspace)
