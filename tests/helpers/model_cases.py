"""Every model of ours as a case: inputs that it answers, one that is bad, and how it is loaded and asked in a test."""

from __future__ import annotations

import itertools
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fake_backend
import numpy as np
import pytest
from checkout import ROOT
from counting_engine import CountingEngine
from fake_backend import START, Request, Response
from step_schema import LINES, StepLine

from labsched.features import Features
from labsched.kv_budget import KVBudget
from labserve.inflight import setup
from labserve.observe.periodic import PeriodicCall

MODELS_DIR = ROOT / "labs" / "shared" / "models"
GPT2, CODEGEN = str(MODELS_DIR / "tiny-gpt2"), str(MODELS_DIR / "tiny-codegen")
WAIT_S = 60
_numbers = itertools.count(1)


def text(*words: bytes) -> Any:
    return np.array([[word] for word in words], dtype=object)


def ids(*numbers: int, kind: Any = np.int32) -> Any:
    return np.array([numbers], dtype=kind)


@dataclass
class Case:
    """A model, inputs that it answers, one of them made bad, and words of the error that this gives."""

    path: str
    good: dict[str, Any]
    bad: tuple[str, Any, str]
    swapped: str = "surplus"  # the optional input that comes in place of a required one
    filled: dict[str, Any] = field(default_factory=dict)
    parameters: str = ""
    breaks: tuple[str, str] = ("", "")  # the object and its method whose failure was not foreseen


PREPROCESSING = {
    "QUERY": text(b"def f"),
    "BAD_WORDS_DICT": text(b""),
    "STOP_WORDS_DICT": text(b""),
    "REQUEST_OUTPUT_LEN": ids(3, kind=np.uint32),
}
CASES = [
    Case(
        "iterative/simple-gpt2",
        {"text_input": text(b"The")},
        ("text_input", text(b""), "the text is empty"),
        filled={"model_path": GPT2, "kv_cache": "true", "precision": "fp32", "max_batch_size": 4},
        parameters='{"max_tokens": 3}',
        breaks=("running.decoder", "logits"),
    ),
    Case(
        "iterative/iterative-gpt2",
        {"text_input": text(b"The")},
        ("text_input", text(b"a" * 10**6), "65,536"),
        filled={"model_path": GPT2, "kv_cache": "true", "precision": "fp32", "max_batch_size": 4},
        parameters='{"max_tokens": 1}',
        breaks=("running.decoder", "logits"),
    ),
    Case(
        "llama-python/llama-python",
        {"text_input": np.array([b"The"], dtype=object), "max_tokens": ids(2)[0]},
        ("max_tokens", np.array([10**6]), "out of range"),
        filled={"model_path": GPT2},
        breaks=("generator", "generate"),
    ),
    Case(
        "llama-python/llama-python-batched",
        {"text_input": text(b"The"), "max_tokens": ids(2)},
        ("max_tokens", ids(0), "out of range"),
        filled={"model_path": GPT2},
        breaks=("generator", "generate"),
    ),
    Case(
        "llm/preprocessing",
        PREPROCESSING,
        ("QUERY", text(b"\xff"), "not valid UTF-8"),
        filled={"tokenizer_dir": GPT2},
        breaks=("", "tokenizer"),
    ),
    Case(
        "codegen/preprocessing",
        PREPROCESSING,
        ("QUERY", text(b"x" * 2**20), "cannot fit"),
        filled={"tokenizer_dir": CODEGEN},
        breaks=("", "encode"),
    ),
    Case(
        "llm/postprocessing",
        {"TOKENS_BATCH": np.array([[[5, 6]]])},
        ("CONTEXT_IDS", None, ""),
        swapped="LAST",
        filled={"tokenizer_dir": GPT2},
        breaks=("", "decode"),
    ),
    Case(
        "codegen/postprocessing",
        {"TOKENS_BATCH": np.array([[[5, 6]]])},
        ("END_ID", None, ""),
        swapped="END_ID",
        filled={"tokenizer_dir": CODEGEN},
        breaks=("", "decode"),
    ),
    Case(
        "codegen/codegen-350M-mono-gptj",
        {"input_ids": ids(5, 6), "input_lengths": ids(2), "request_output_len": ids(3)},
        ("input_ids", ids(5, 10**6), "ids must be from"),
        swapped="end_id",
        filled={"model_dir": CODEGEN, "exact": "true", "kv_cache_memory_mib": 64},
        breaks=("rows.engine.decoder", "begin"),
    ),
    Case(
        "sequence-batcher/tokenizer",
        {"INPUT_TOKENS": text(b"The"), "READY": [1], "START": [1], "END": [0], "CORR_ID": [7]},
        ("INPUT_TOKENS", text(b"a" * 10**6), "65,536"),
        filled={
            "model_path": GPT2,
            "strategy": "oldest { }",
            "max_batch_size": 4,
            "corr_id_control": "control_input [ { name: 'CORR_ID' control ["
            " { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } ] } ]",
        },
        breaks=("", "tokenizer"),
    ),
    Case(
        "sequence-batcher/detokenizer",
        {"INPUT_LOGITS": np.zeros((1, 2, 1216), dtype=np.float32)},
        ("INPUT_LOGITS", np.full((1, 1, 1216), np.nan, dtype=np.float32), "must be finite"),
        filled={"model_path": GPT2, "sampling": "greedy", "vocab_size": 1216},
        breaks=("", "choose"),
    ),
    Case(
        "llm/tensorrt_llm",
        {"input_ids": ids(5, 6), "input_lengths": ids(2), "request_output_len": ids(3)},
        ("request_output_len", ids(0), "at least 1"),
        swapped="end_id",
        filled={
            "engine_dir": GPT2,
            "decoupled_mode": "false",
            "batch_scheduler_policy": "guaranteed_no_evict",
            "asked_batch_scheduler_policy": "guaranteed_no_evict",
            "max_num_sequences": 4,
            "scheduling": "fcfs",
            "pace": "none",
        },
        breaks=("driver.scheduler.engine", "step"),
    ),
]
LAB_7 = "../labs/07-scale-out/models"
SMALL = [  # models of a lab's own, whose step log tells less
    Case(
        f"{LAB_7}/waits", {"text_input": text(b"The")}, ("", None, ""), breaks=("guard", "check"), filled={"step_ms": 1}
    ),
    Case(
        f"{LAB_7}/computes",
        {"text_input": text(b"The")},
        ("text_input", text(b"a", b"b"), "one text per request"),
        breaks=("pool", "map"),
    ),
    Case(f"{LAB_7}/remembers", {"text_input": text(b"The")}, ("", None, ""), breaks=("guard", "check")),
    Case(
        f"{LAB_7}/streams",
        {"text_input": text(b"The cat")},
        ("text_input", text(b"a" * 10**5), "65,536"),
        swapped="max_tokens",
        breaks=("driver", "_read"),
        filled={"seats": 2, "step_ms": 1},
    ),
    Case(
        "../labs/06-modern-schedulers/models/night_job",
        {"milliseconds": ids(1)[0]},
        ("milliseconds", ids(10**6)[0], "out of range"),
        breaks=("log", "write"),
        filled={"trtllm_integers": "UINT32"},
    ),
]
SIMPLE, ITERATIVE, LLAMA, ENGINE, STREAMS = (
    next(case for case in (*CASES, *SMALL) if case.path.endswith(f"/{name}"))
    for name in ("simple-gpt2", "iterative-gpt2", "llama-python", "tensorrt_llm", "streams")
)
ALL = pytest.mark.parametrize("case", [*CASES, *SMALL], ids=lambda case: Path(case.path).name)


@pytest.fixture
def by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a model does again and again in a thread of its own is done by the test alone (`tick`)."""
    monkeypatch.setattr(PeriodicCall, "_run", lambda call: None)


@pytest.fixture
def load(by_hand: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[[Case], Any]]:
    monkeypatch.setattr(setup, "open_engine", lambda *_: (CountingEngine(), KVBudget(100, 4), Features()))
    monkeypatch.setenv("LABS_STEP_LOG", "texts")
    made = []

    def load(case: Case) -> Any:
        made.append(fake_backend.load(case.path, **{"run_dir": tmp_path, **case.filled}))
        return made[-1]

    yield load
    for model in made:
        if hasattr(model, "finalize"):
            model.finalize()
    steps_of(tmp_path)


def steps_of(folder: Path) -> list[StepLine]:
    """The steps that the models have logged; every line has the documented form."""
    texts = [path.read_text() for path in folder.glob("steps-*.jsonl")]
    lines = [LINES.validate_json(line) for text in texts for line in text.splitlines()]
    return [line for line in lines if isinstance(line, StepLine)]


def request(case: Case, changes: dict[str, Any] | None = None) -> Request:
    """A request of the case, its inputs changed (None: left out)."""
    inputs = {name: value for name, value in {**case.good, **(changes or {})}.items() if value is not None}
    number = next(_numbers)
    if "CORR_ID" in inputs:
        inputs["CORR_ID"] = [number]
    return Request(inputs, case.parameters, correlation=number, flags=START)


def answered(model: Any, requests: list[Request]) -> list[Response]:
    """The last response to each request, however the model answers."""
    finals = []
    for each in requests:
        final = threading.Event()
        each.when_final = final.set
        finals.append(final)
    direct = model.execute(requests)
    if direct is not None and any(response is not None for response in direct):
        return list(direct)
    assert all(final.wait(WAIT_S) for final in finals), "a request without its final response"
    return [each.responses[-1] for each in requests]


def says_nothing_of_the_code(words: str) -> None:
    assert not re.search(r"/\w+/|\.py|Error\b|Traceback|object|NoneType|KeyError|line \d", words), words
