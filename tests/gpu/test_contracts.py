"""Labs 03's and 05's own clients in front of each release's contracts, in a real Triton around a stub.

Upstream's files are not in this repository: the models here are ours, with the same names, shapes, datatypes, refusals.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from environments import COSTLY
from machinery import ROOT, copy_of_the_checkout, labctl

from labctl.measure.clients import ask, conversation
from labctl.measure.clients.tensors import kind_of
from labctl.measure.workloads import identity
from labctl.trtllm.releases import table

LAB = Path(__file__).parent / "contracts_lab"
CONTRACTS = sorted({(it.integers, it.name == "0.5.0") for it in table().values() if it.steps})

pytestmark = [pytest.mark.proof, pytest.mark.xdist_group("contracts"), COSTLY]


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory, snapshot: Path) -> Iterator[Callable[..., str]]:
    """``serving(STACK, setting=value)``: the gRPC endpoint of that stack, up on the local runtime."""
    root = copy_of_the_checkout(tmp_path_factory.mktemp("contracts") / "checkout", snapshot)
    shutil.copytree(LAB, root / "labs" / "98-contracts", ignore=shutil.ignore_patterns("models", "llmapi"))
    shutil.copytree(LAB / "models", root / "model_repos" / "contracts")
    shutil.copytree(LAB / "llmapi", root / "model_repos" / "contracts-llmapi")

    def up(stack: str, **settings: Any) -> str:
        labctl("down", stack, root=root, check=False)
        chosen = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        labctl("up", stack, "--runtime", "local", "--ports", "auto", *chosen, root=root)
        kind_of.cache_clear()
        found: str = json.loads(labctl("status", stack, "--json", root=root).stdout)["endpoints"]["grpc"]
        return found

    yield up
    labctl("down", "--all", root=root)


@pytest.fixture(scope="module")
def lab_03() -> Any:
    spec = importlib.util.spec_from_file_location("lab_03", ROOT / "labs/03-llama-hf-vs-trtllm/client.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("integers", "plain_ids"), CONTRACTS)
def test_both_labs_clients_are_answered_through_the_releases_contracts(
    serving: Callable[..., str], lab_03: Any, integers: str, plain_ids: bool
) -> None:
    endpoint = serving("upstream", integers=integers, plain_ids=str(plain_ids).lower())
    answers = lab_03.at_once(endpoint, "ensemble", ["one", "two"], 3)
    assert [record.text for record in answers] == ["onebbb", "twobbb"]
    records = identity.run(endpoint, [identity.Ids("x", [7, 8], 4)] * 5)
    assert [record.tokens for record in records] == [4] * 5


def test_the_llm_api_is_asked_in_its_own_words(serving: Callable[..., str], lab_03: Any) -> None:
    endpoint = serving("llm-api")
    assert "".join(ask.generate(endpoint, "tensorrt_llm", "one", 3, stream=False)) == "bbb"
    (record,) = lab_03.at_once(endpoint, "tensorrt_llm", ["one"], 3)
    assert record.text == "bbb"
    asked = [identity.Ids("x", [7, 8], 4, "one"), identity.Ids("y", [7], 2, "two")]
    records = identity.run_as_text(endpoint, asked, len)
    assert [(record.text, record.tokens) for record in records] == [("bbbb", 4), ("bb", 2)]
    assert identity.table(records)["Avg. IP tokens per request"] == 1.5


def test_the_llm_api_streams_where_the_model_says_that_it_is_decoupled(
    serving: Callable[..., str], lab_03: Any
) -> None:
    endpoint = serving("llm-api", decoupled="true")
    (record,) = lab_03.streamed(endpoint, "tensorrt_llm", ["one"], 3)
    assert [text for _, text in record.responses] == ["b", "b", "b"]
    assert "".join(ask.generate(endpoint, "tensorrt_llm", "one", 3, stream=True)) == "onebbb"
    *_, whole = conversation.ask(endpoint, "tensorrt_llm", "one", 3, {})
    assert whole.text == "onebbb"
