"""The labs' own clients, and lab 04's model, in front of TensorRT-LLM's contracts, in a real Triton around a stub.

Upstream's files are not in this repository: the models here are ours, with the same names, shapes, datatypes, refusals
and metrics. Each of them names upstream's file and tag.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from checkout import ROOT
from environments import COSTLY
from machinery import copy_of_the_checkout, labctl
from tritonclient.utils import np_to_triton_dtype

from labkit.client import identity, trtllm_metrics
from labkit.client.ask import connect, kind_of

LAB = Path(__file__).parent / "contracts_lab"

pytestmark = [pytest.mark.proof, pytest.mark.xdist_group("contracts"), COSTLY]


@dataclass
class Serving:
    """``serving(STACK, setting=value)``: the gRPC endpoint of that stack, up on the local runtime."""

    root: Path
    endpoints: dict[str, str] = field(default_factory=dict)

    def __call__(self, stack: str, **settings: Any) -> str:
        labctl("down", "--all", root=self.root)
        chosen = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        labctl("up", stack, "--runtime", "local", "--ports", "auto", *chosen, root=self.root)
        kind_of.cache_clear()
        self.endpoints = json.loads(labctl("status", stack, "--json", root=self.root).stdout)["endpoints"]
        return self.endpoints["grpc"]


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory, snapshot: Path) -> Iterator[Serving]:
    root = copy_of_the_checkout(tmp_path_factory.mktemp("contracts") / "checkout", snapshot)
    (root / "labs" / "98-contracts").mkdir()
    shutil.copyfile(LAB / "lab.py", root / "labs" / "98-contracts" / "lab.py")
    for folder in (path for path in LAB.iterdir() if path.is_dir()):
        shutil.copytree(folder, root / "model_repos" / f"contracts-{folder.name}".replace("-models", ""))
    yield Serving(root)
    labctl("down", "--all", root=root)


def inputs(**tensors: Any) -> list[Any]:
    made = []
    for name, values in tensors.items():
        array = np.array(values)
        item = grpcclient.InferInput(name, array.shape, np_to_triton_dtype(array.dtype))
        made.append(item.set_data_from_numpy(array))
    return made


@pytest.fixture(scope="module")
def lab_03() -> Any:
    spec = importlib.util.spec_from_file_location("lab_03", ROOT / "labs/03-llama-hf-vs-trtllm/client.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_clients_of_labs_03_and_05_are_answered_through_tensorrt_llms_contract(
    serving: Serving, lab_03: Any
) -> None:
    endpoint = serving("upstream")
    answers = lab_03.at_once(endpoint, "ensemble", ["one", "two"], 3)
    assert [record.text for record in answers] == ["onebb", "twobb"]  # the third token is EOS, which is no text
    records = identity.run_identity_test(endpoint, [identity.Ids("x", [7, 8], 4)] * 5)
    assert [record.tokens for record in records] == [4] * 5


def test_an_early_end_of_text_does_not_shorten_an_answer_that_is_booked_whole(serving: Serving, lab_03: Any) -> None:
    endpoint = serving("upstream")
    (record,) = lab_03.at_once(endpoint, "ensemble", ["one"], 6)
    assert (record.text, record.output_tokens) == ("one" + "b" * 5, 6)


def test_lab_04s_model_is_answered_through_tensorrt_llms_contract(serving: Serving) -> None:
    endpoint = serving("in-front")  # its own probe is a first request
    with connect(endpoint) as client:
        asked = inputs(
            input_ids=np.array([[5, 6, 7]], np.uint32),
            input_lengths=np.array([[3]], np.uint32),
            request_output_len=np.array([[4]], np.uint32),
            is_return_log_probs=[[True]],
        )
        found = client.infer("codegen-350M-mono-gptj", asked)
    assert found.as_numpy("sequence_length").tolist() == [[7]]
    assert found.as_numpy("output_ids").tolist() == [[[5, 6, 7, 98, 98, 2, 98]]]


def figures(serving: Serving, **settings: Any) -> dict[str, float]:
    """Lab 05's figures of scheduling for eight answers of four tokens by an engine with four slots."""
    endpoint = serving("upstream", iteration_ms=200, **settings)
    with trtllm_metrics.Watch(serving.endpoints["metrics"], "tensorrt_llm") as watch:
        records = identity.run_identity_test(endpoint, [identity.Ids("x", [7, 8], 4)] * 8)
    return watch.counted(records)


def test_the_backends_own_metrics_give_lab_05_its_engine_steps_and_paused_requests(serving: Serving) -> None:
    found = figures(serving, paused=2)
    assert 8 <= found["steps"] <= 32, "two rounds of four steps; requests that arrive apart take more"
    assert 1 <= found["mean_batch"] <= found["max_batch"] == found["max_kv_blocks_used"] <= 4
    assert found["kv_blocks"] == 100
    assert found["preemptions"] == 2 * found["iterations_seen"] > 0
    assert found["iterations_seen"] <= found["iterations"] == found["steps"]
