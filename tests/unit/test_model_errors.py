"""Every model of ours, as it is: an error names the input, stays with its request, and says nothing of our code."""

from __future__ import annotations

import itertools
import json
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import fake_backend
import numpy as np
import pytest
from counting_engine import CountingEngine
from fake_backend import LOG, START, Request, Response
from waiting import eventually

from labctl.measure.evidence.step_schema import StepLine
from labserve.gauges import METRICS
from labserve.inflight import engines
from labserve.inflight.features import Features
from labserve.inflight.kv_budget import KVBudget

MODELS_DIR = Path(__file__).resolve().parents[2] / "models"
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


class _Engine(CountingEngine):
    cache_bytes = 0


PREPROCESSING = {
    "QUERY": text(b"def f"), "BAD_WORDS_DICT": text(b""), "STOP_WORDS_DICT": text(b""),
    "REQUEST_OUTPUT_LEN": ids(3, kind=np.uint32),
}  # fmt: skip
CASES = [
    Case("iterative/simple-gpt2", {"text_input": text(b"The")}, ("text_input", text(b""), "the text is empty"),
         filled={"model_path": GPT2, "kv_cache": "true", "precision": "fp32", "max_batch_size": 4},
         parameters='{"max_tokens": 3}',
         breaks=("decoder", "logits")),
    Case("iterative/iterative-gpt2", {"text_input": text(b"The")}, ("text_input", text(b"a" * 10**6), "65,536"),
         filled={"model_path": GPT2, "kv_cache": "true", "precision": "fp32", "max_batch_size": 4},
         parameters='{"max_tokens": 1}',
         breaks=("decoder", "logits")),
    Case("llama-python/llama-python", {"text_input": np.array([b"The"], dtype=object), "max_tokens": ids(2)[0]},
         ("max_tokens", np.array([10**6]), "out of range"), filled={"model_path": GPT2},
         breaks=("generator", "generate")),
    Case("llama-python/llama-python-batched", {"text_input": text(b"The"), "max_tokens": ids(2)},
         ("max_tokens", ids(0), "out of range"), filled={"model_path": GPT2}, breaks=("generator", "generate")),
    Case("llm/preprocessing", PREPROCESSING, ("QUERY", text(b"\xff"), "not valid UTF-8"),
         filled={"tokenizer_dir": GPT2}, breaks=("", "tokenizer")),
    Case("codegen/preprocessing", PREPROCESSING, ("QUERY", text(b"x" * 2**20), "cannot fit"),
         filled={"tokenizer_dir": CODEGEN}, breaks=("", "encode")),
    Case("llm/postprocessing", {"TOKENS_BATCH": np.array([[[5, 6]]])}, ("CONTEXT_IDS", None, ""), swapped="LAST",
         filled={"tokenizer_dir": GPT2}, breaks=("", "decode")),
    Case("codegen/postprocessing", {"TOKENS_BATCH": np.array([[[5, 6]]])}, ("END_ID", None, ""), swapped="END_ID",
         filled={"tokenizer_dir": CODEGEN}, breaks=("", "decode")),
    Case("codegen/codegen-350M-mono-gptj",
         {"input_ids": ids(5, 6), "input_lengths": ids(2), "request_output_len": ids(3)},
         ("input_ids", ids(5, 10**6), "ids must be from"), swapped="end_id",
         filled={"model_dir": CODEGEN, "exact": "true", "kv_cache_memory_mib": 64}, breaks=("decoder", "begin")),
    Case("sequence-batcher/tokenizer",
         {"INPUT_TOKENS": text(b"The"), "READY": [1], "START": [1], "END": [0], "CORR_ID": [7]},
         ("INPUT_TOKENS", text(b"a" * 10**6), "65,536"),
         filled={"model_path": GPT2, "strategy": "oldest { }", "max_batch_size": 4,
                 "corr_id_control": "control_input [ { name: 'CORR_ID' control ["
                 " { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } ] } ]"},
         breaks=("", "tokenizer")),
    Case("sequence-batcher/detokenizer", {"INPUT_LOGITS": np.zeros((1, 2, 1216), dtype=np.float32)},
         ("INPUT_LOGITS", np.full((1, 1, 1216), np.nan, dtype=np.float32), "must be finite"),
         filled={"model_path": GPT2, "sampling": "greedy", "vocab_size": 1216}, breaks=("", "choose")),
    Case("llm/tensorrt_llm", {"input_ids": ids(5, 6), "input_lengths": ids(2), "request_output_len": ids(3)},
         ("request_output_len", ids(0), "at least 1"), swapped="end_id",
         filled={"engine_dir": GPT2, "decoupled_mode": "false", "batch_scheduler_policy": "guaranteed_no_evict",
                 "asked_batch_scheduler_policy": "guaranteed_no_evict", "max_num_sequences": 4,
                 "scheduling": "fcfs"},
         breaks=("scheduler.engine", "step")),
]  # fmt: skip
LAB_7 = "../labs/07-scale-out/models"
SMALL = [  # models of a lab's own, whose step log tells less
    Case(f"{LAB_7}/waits", {"text_input": text(b"The")}, ("", None, ""), breaks=("guard", "check"),
         filled={"step_ms": 1}),
    Case(f"{LAB_7}/computes", {"text_input": text(b"The")}, ("text_input", text(b"a", b"b"), "one text per request"),
         breaks=("pool", "map")),
    Case(f"{LAB_7}/remembers", {"text_input": text(b"The")}, ("", None, ""), breaks=("guard", "check")),
    Case(f"{LAB_7}/streams", {"text_input": text(b"The cat")}, ("text_input", text(b"a" * 10**5), "65,536"),
         swapped="max_tokens", breaks=("", "job_of"), filled={"seats": 2, "step_ms": 1}),
    Case("../labs/06-modern-schedulers/models/night_job", {"milliseconds": ids(1)[0]},
         ("milliseconds", ids(10**6)[0], "out of range"), breaks=("log", "write"),
         filled={"trtllm_integers": "UINT32"}),
]  # fmt: skip
ALL = pytest.mark.parametrize("case", [*CASES, *SMALL], ids=lambda case: Path(case.path).name)


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[[Case], Any]]:
    monkeypatch.setattr(engines, "open_engine", lambda *_: (_Engine(), KVBudget(100, 4), Features()))
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
    """What the models have logged, every line in the documented form."""
    texts = [path.read_text() for path in folder.glob("steps-*.jsonl")]
    return [StepLine.model_validate_json(line) for text in texts for line in text.splitlines()]


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


@ALL
def test_a_required_input_that_is_replaced_by_another_is_named_with_what_is_expected(
    case: Case, load: Callable[[Case], Any]
) -> None:
    model = load(case)
    name = next(iter(case.good))
    (response,) = answered(model, [request(case, {name: None, case.swapped: np.array([[1]])})])
    assert response.error.startswith(f"{name}: it is missing; expected "), response.error
    says_nothing_of_the_code(response.error)


@pytest.mark.parametrize("case", [case for case in CASES if "processing" not in case.path], ids=lambda case: case.path)
def test_the_step_log_tells_of_every_request_in_the_batch_and_of_its_end(
    case: Case, load: Callable[[Case], Any], tmp_path: Path
) -> None:
    model = load(case)
    answered(model, [request(case) for _ in range(3)])
    model.finalize()
    steps = steps_of(tmp_path)
    assert max(step.batch for step in steps) == (1 if case.path == "llama-python/llama-python" else 3)
    if "detokenizer" in case.path:
        assert all(step.made == [1] * 3 and step.texts for step in steps)
        return
    assert all(step.rows is not None for step in steps)
    if "tokenizer" in case.path:
        assert steps[0].seats and steps[0].start == [1, 1, 1]
        return
    joined = [name for step in steps for name in step.joined]
    assert sorted(joined) == sorted({name for step in steps for name in step.ids})
    assert {name: why for step in steps for name, why in step.ended.items()} == dict.fromkeys(joined, "length")
    assert all(step.tokens and step.made for step in steps)
    assert all(step.texts is not None and len(step.texts) == step.batch for step in steps)
    asked = case.good.get("request_output_len", case.good.get("max_tokens"))
    wanted = int(np.ravel(asked)[0]) if asked is not None else json.loads(case.parameters)["max_tokens"]
    made = Counter[str]()
    for step in steps:
        made.update(dict(zip(step.ids, step.made or [], strict=True)))
    assert made == dict.fromkeys(joined, wanted)


@ALL
def test_one_bad_request_is_told_by_name_and_its_neighbours_are_answered(
    case: Case, load: Callable[[Case], Any]
) -> None:
    model = load(case)
    name, value, words = case.bad
    if not words:
        name, value, words = next(iter(case.good)), None, "it is missing"
    good, bad = [request(case) for _ in range(3)], request(case, {name: value})
    responses = answered(model, [good[0], bad, *good[1:]])
    assert [bool(response.error) for response in responses] == [False, True, False, False]
    assert responses[1].error.startswith(f"{name}: ")
    assert words in responses[1].error
    says_nothing_of_the_code(responses[1].error)


@ALL
def test_what_was_not_foreseen_is_an_internal_error_and_its_story_is_in_the_log(
    case: Case, load: Callable[[Case], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load(case)
    where, method = case.breaks
    broken = model
    for part in where.split(".") if where else []:
        broken = getattr(broken, part)

    def fail(*_: Any, **__: Any) -> Any:
        raise KeyError("/opt/secret/model.py")

    monkeypatch.setattr(broken, method, fail)
    LOG.clear()
    (response,) = answered(model, [request(case)])
    assert f"internal error in {Path(case.path).name} (see the server's log, entry 1)" in response.error
    says_nothing_of_the_code(response.error)
    assert "entry 1" in LOG[0]
    assert "Traceback" in LOG[0]


@pytest.mark.parametrize("case", [c for c in CASES if c.path.endswith("350M-mono-gptj")], ids=lambda case: case.path)
def test_a_row_whose_scores_are_no_numbers_fails_alone(
    case: Case, load: Callable[[Case], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load(case)
    begin = model.decoder.begin

    def poisoned(prompts: list[list[int]]) -> Any:
        scores = begin(prompts).clone()
        scores[prompts.index([9, 9])] = float("nan")
        return scores

    monkeypatch.setattr(model.decoder, "begin", poisoned)
    good, bad = request(case), request(case, {"input_ids": ids(9, 9)})
    first, second = answered(model, [good, bad])
    assert not first.error
    assert second.error.startswith("internal error in codegen-350M-mono-gptj")


def test_a_request_whose_client_is_gone_is_not_generated_to_its_end(load: Callable[[Case], Any]) -> None:
    case = next(c for c in CASES if c.path == "llama-python/llama-python")
    model = load(case)
    long = request(case, {"max_tokens": np.array([900])})
    long.cancelled = True
    (response,) = answered(model, [long])
    assert "cancelled" in response.error


def test_an_answer_that_takes_too_long_ends_with_an_error_that_says_what_to_do(load: Callable[[Case], Any]) -> None:
    case = next(c for c in CASES if c.path == "llama-python/llama-python")
    model = load(case)
    model.generator._most_seconds = 0.0
    (response,) = answered(model, [request(case, {"max_tokens": np.array([900])})])
    assert response.error.startswith("max_tokens: after 0 s ")


def test_a_failing_scheduler_thread_tells_everybody_who_waits_and_whoever_comes_later(
    load: Callable[[Case], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault 26: an exception outside the step."""
    case = next(c for c in CASES if c.path == "llm/tensorrt_llm")
    model = load(case)

    def fail(*_: Any) -> Any:
        raise OSError("the disk is gone: /run/steps")

    monkeypatch.setattr(model, "record", fail)
    waiting = [request(case) for _ in range(3)]
    first = answered(model, [request(case, {"request_output_len": ids(90)}), *waiting])
    assert all("internal error in tensorrt_llm" in response.error for response in first)
    (later,) = answered(model, [request(case)])
    assert "internal error in tensorrt_llm" in later.error


def test_the_server_is_not_asked_at_every_step_whether_each_client_is_still_there(
    load: Callable[[Case], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each question is a message there and back between two steps, and the engine stands idle for it."""
    case = next(c for c in CASES if c.path == "llm/tensorrt_llm")
    model = load(case)
    monkeypatch.setitem(type(model).drop_cancelled.__globals__, "ASK_S", 1e9)
    asked: list[Request] = []

    def is_cancelled(each: Request) -> bool:
        asked.append(each)
        return False

    monkeypatch.setattr(Request, "is_cancelled", is_cancelled)
    answered(model, [request(case, {"request_output_len": ids(90)})])
    assert len(asked) == 1, "once, before it joins"


STREAMS = next(case for case in SMALL if case.path.endswith("streams"))


def test_who_leaves_the_queue_or_a_seat_is_forgotten_and_the_others_are_answered(load: Callable[[Case], Any]) -> None:
    model = load(replace(STREAMS, filled={"seats": 2, "step_ms": 20}))
    asked = [Request({**STREAMS.good, "max_tokens": ids(1000)}, id="1") for _ in range(5)]
    ends = [threading.Event() for _ in asked]
    for each, end in zip(asked, ends, strict=True):
        each.when_final = end.set
    model.execute(asked)
    eventually(lambda: all(len(each.responses) > 1 for each in asked[:2]))
    asked[2].cancelled = asked[0].cancelled = True  # one that waits, one in a seat
    eventually(lambda: len(asked[3].responses) > 1)
    assert ends[0].is_set() and ends[2].is_set()
    assert len(asked[2].responses) == 1
    for each in asked:
        each.cancelled = True
    assert all(end.wait(WAIT_S) for end in ends)
    eventually(lambda: (model.seats.used, len(model.waiting), len(model.names._live)) == (0, 0, 0))


def test_an_answer_that_cannot_be_sent_ends_its_request_alone(load: Callable[[Case], Any]) -> None:
    model = load(STREAMS)
    good, bad = Request(STREAMS.good), Request(STREAMS.good)
    send = bad.send

    def full(response: Response, flags: int = 0) -> None:
        if not response.error:
            raise RuntimeError("no room in /dev/shm/labs-x")
        send(response, flags)

    bad.send = full  # type: ignore[method-assign]
    first, second = answered(model, [good, bad])
    assert not first.error
    assert second.error.startswith("internal error in streams")
    assert answered(model, [Request(STREAMS.good)])[0].error == ""


def test_a_failing_loop_tells_everybody_who_waits_and_whoever_comes_later(
    load: Callable[[Case], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load(STREAMS)

    def fail(*_: Any) -> Any:
        raise OSError("the disk is gone: /run/steps")

    monkeypatch.setattr(model, "admit", fail)
    for _ in range(2):
        assert all("internal error in streams" in each.error for each in answered(model, [request(STREAMS)]))


def test_importing_labserve_keeps_no_module_out_of_the_process() -> None:
    import subprocess
    import sys

    code = "import sys, labserve, labserve.params, labserve.steplog; sys.exit('sklearn' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_every_metric_of_a_model_is_explained_in_the_docs() -> None:
    told = (MODELS_DIR.parent / "docs" / "metrics.md").read_text(encoding="utf-8")
    assert [name for name in METRICS if f"`labs_{name}`" not in told] == []
