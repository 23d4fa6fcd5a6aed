"""A real engine: exported from a tiny random Llama, loaded by the pipeline that serves it, and right."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest
from checkout import ROOT

from labctl.artifacts import engines
from labctl.workspace import Workspace

pytestmark = pytest.mark.night

SPEC = "random:tiny-llama"
TOKENS = 12


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache in which nothing is yet: in that of all tests another one may have made this engine."""
    return tmp_path_factory.mktemp("fresh")


@pytest.fixture(scope="module")
def engine(fresh: Path) -> Path:
    """The folder, made as labctl makes it: in a process of its own."""
    argv = [sys.executable, *engines.request("openvino", SPEC, {"precision": "fp32"}).argv]
    env = {**os.environ, "LABS_CACHE": str(fresh), "HOME": str(fresh)}
    done = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert "exporting" in done.stderr
    return Path(json.loads(done.stdout)["path"])


def test_the_engine_is_where_the_plan_says_and_whole(engine: Path, fresh: Path) -> None:
    build = engines.request("openvino", SPEC, {"precision": "fp32"})
    workspace = Workspace(ROOT, fresh)
    assert build.locate(workspace) == engine
    assert build.ready(workspace)
    assert build.manifest(workspace)["versions"]["openvino-genai"]


def test_a_build_tells_nobody_of_itself(engine: Path, fresh: Path) -> None:
    """OpenVINO's telemetry remembers in ~/intel who it tells Google Analytics of."""
    assert not (fresh / "intel").exists()


def continue_with_openvino(engine: Path, ids: list[list[int]]) -> list[int]:
    """Its answer's ids. In a process of its own.

    With the pipeline OpenVINO's CPU plugin frees the stack that it had given to the main thread for signals: the next
    signal there ends the process.
    """
    import numpy
    import openvino
    import openvino_genai

    scheduler = openvino_genai.SchedulerConfig()
    scheduler.num_kv_blocks = 16
    exact = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32", "INFERENCE_NUM_THREADS": 1}
    pipeline = openvino_genai.ContinuousBatchingPipeline(str(engine), scheduler, "CPU", exact)
    config = openvino_genai.GenerationConfig()
    config.max_new_tokens, config.ignore_eos, config.do_sample = TOKENS, True, False
    config.apply_chat_template = False
    (result,) = pipeline.generate([openvino.Tensor(numpy.asarray(ids, numpy.int64))], [config])
    return list(result.m_generation_ids[0])


def test_the_engine_continues_as_the_weights_do(engine: Path, fresh: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from labctl.artifacts import weights

    path = weights.parse_source(SPEC).locate(Workspace(ROOT, fresh))
    prompt = AutoTokenizer.from_pretrained(path)("Programming is like", return_tensors="pt")
    model = AutoModelForCausalLM.from_pretrained(path)
    with torch.inference_mode():
        expected = model.generate(**prompt, max_new_tokens=TOKENS, do_sample=False, eos_token_id=None, pad_token_id=0)
    expected = expected[0, prompt.input_ids.shape[1] :].tolist()
    with ProcessPoolExecutor(1, get_context("spawn")) as other:
        assert other.submit(continue_with_openvino, engine, prompt.input_ids.tolist()).result() == expected


def test_eight_bit_weights_are_really_smaller(engine: Path, fresh: Path) -> None:
    small = engines.request("openvino", SPEC, {"precision": "int8"}).make(Workspace(ROOT, fresh), print)
    sizes = [(folder / "openvino_model.bin").stat().st_size for folder in (engine, small)]
    assert sizes[1] < 0.4 * sizes[0]
    assert not list(small.glob("smaller*"))
