"""engine=vllm without vLLM: what is refused by name, its arguments, and the account of its decisions.

The stand-in has the attributes of vLLM 0.32.0's scheduler that the account reads; the integration tests have the real.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fake_backend  # noqa: F401  (Triton's Python module, which labserve imports)
import numpy as np
import pytest
from checkout import ROOT
from lab_errors import lab_error

from labctl import catalog
from labctl.learn import server
from labctl.learn.exercise import find_exercise, find_exercises
from labctl.listener import Silent
from labctl.options import Options
from labctl.plan import make_plan
from labctl.recordings.vllm import stack_names
from labctl.runtimes.local import LocalRuntime
from labctl.stack.build import refuse_unservable
from labctl.stack.session import Session
from labctl.workspace import Workspace
from labsched.log.settings import SchedulerSettings
from labsched.own import class_beside
from labsched.replay.vllm_arguments import labs_names, their_names
from labsched.replay.vllm_scheduler import change_vllm_settings
from labsched.request import End, Request
from labsched.step import Step
from labsched.vllm.decision import StepsInFlight, decision, why_not_admitted
from labserve.model_shape import ModelShape
from labserve.params import BadInput
from labserve.vllm.engine import PATIENCE_S, VllmScheduler, VllmTextRequest
from labserve.vllm.settings import VllmSettings
from labserve.vllm.setup import arguments_beside
from labserve.vllm.text import json_of

SHAPE = ModelShape(vocabulary=300, context=1024, token_values=512, head_dim=64)


def settings(device: str = "cpu", **words: str) -> VllmSettings:
    given = {"gpt_model_path": "/models/tiny", "gpt_model_type": "inflight_fused_batching", **words}
    given.setdefault("kv_cache_memory_mib", "1024")
    return VllmSettings.of(lambda name: given.get(name, ""), SHAPE, device)


def test_the_labs_words_are_vllms_arguments() -> None:
    made = settings(
        max_num_sequences="4",
        max_num_tokens="64",
        enable_kv_cache_reuse="true",
        scheduling="priority",
        max_tokens_in_paged_kv_cache="320",
        exact="true",
        speculation="prompt_lookup",
        num_assistant_tokens="3",
    ).arguments
    wanted = {
        "max_num_seqs": 4,
        "max_num_batched_tokens": 64,
        "enable_prefix_caching": True,
        "scheduling_policy": "priority",
        "num_gpu_blocks_override": 11,
        "block_size": 32,
        "max_model_len": 320,
        "dtype": "float32",
    }
    assert {name: made[name] for name in wanted} == wanted
    assert made["speculative_config"]["method"] == "ngram"
    assert made["speculative_config"]["num_speculative_tokens"] == 3


def test_ranks_that_cannot_share_a_model_are_refused_by_what_they_cannot_share() -> None:
    tiny = {"gpt_model_path": str(ROOT / "labs" / "shared" / "models" / "tiny-llama")}
    with pytest.raises(ValueError, match="intermediate_size of 341"):
        settings(tp_size="2", **tiny)
    with pytest.raises(ValueError, match="num_attention_heads of 4"):
        settings(tp_size="3", **tiny)


def test_the_largest_batch_has_a_graph_on_a_gpu() -> None:
    def sizes(limit: int) -> list[int]:
        made = settings("cuda:0", execution="graphs", max_num_sequences=str(limit)).arguments["compilation_config"]
        return made["cudagraph_capture_sizes"]

    assert sizes(6) == [1, 2, 4, 6]
    assert sizes(98)[-3:] == [88, 96, 98]


def test_vllms_own_names_set_a_stack_that_is_vllms() -> None:
    theirs = {"max_num_seqs": "4", "max_num_batched_tokens": "64", "num_gpu_blocks_override": "11"}
    theirs["tensor_parallel_size"] = "2"
    ours = {"max_num_sequences": "4", "max_num_tokens": "64", "max_tokens_in_paged_kv_cache": "320", "tp_size": "2"}
    assert stack_names({"engine": "vllm", **theirs}) == {"engine": "vllm", **ours}
    assert stack_names({"engine": "openvino", **theirs}) == {"engine": "openvino", **theirs}


def test_a_recording_of_vllm_takes_vllms_names_and_shows_them() -> None:
    words = {"engine": "vllm", "max_num_sequences": "4", "max_tokens_in_paged_kv_cache": "320"}
    known = {"gpu_memory_utilization": 0.9, "device_memory": 80_000, "block_bytes": 100}
    found = SchedulerSettings(words, 100, 16, 64, 512, 1000, recorded=known)
    asked = {"max_num_seqs": "8", "num_gpu_blocks_override": "51"}
    ours = {"max_num_sequences": "8", "max_tokens_in_paged_kv_cache": "800"}
    assert labs_names(found, asked) == ours and their_names(found, ours) == asked
    # A tenth less of 80,000 bytes are 80 blocks of 100 bytes.
    assert labs_names(found, {"gpu_memory_utilization": "0.8"}) == {"max_tokens_in_paged_kv_cache": str(20 * 16)}
    with lab_error("replay-refused"):
        labs_names(replace(found, recorded={}), {"gpu_memory_utilization": "0.8"})
    with lab_error("replay-refused", "a KV connector"):
        change_vllm_settings(replace(found, beyond=["a KV connector"]), {})


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"execution": "lazy"}, "execution: 'lazy'"),
        ({"async_scheduling": "true", "speculation": "prompt_lookup"}, "async_scheduling: prompt lookup"),
        ({"preemption": "swap"}, "preemption: vLLM cannot do 'swap'"),
        ({"scheduling": "fair"}, "scheduling: vLLM has no 'fair'"),
        ({"kv_cache_dtype": "nvfp4"}, "kv_cache_dtype: vLLM on a CPU cannot do 'nvfp4'"),
        ({"max_num_tokens": "8", "max_num_sequences": "16"}, "max_num_tokens: 8"),
        ({"enable_chunked_context": "false", "max_num_tokens": "64"}, "in one piece"),
    ],
)
def test_what_vllm_cannot_do_is_refused_by_name(words: dict[str, str], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        settings(**words)


def test_a_model_whose_attention_heads_the_cpu_build_cannot_compute_is_refused() -> None:
    draft = str(ROOT / "labs" / "shared" / "models" / "tiny-llama-draft")
    with pytest.raises(ValueError, match="draft_model: its attention heads have 16 numbers"):
        settings(speculation="draft", draft_model=draft)


@pytest.mark.parametrize(
    ("stack", "asked", "said"),
    [
        ("inflight-batching", {"scheduling": "shortest_first"}, "two orders"),
        ("modern", {"preemption": "swap"}, "does not swap"),
    ],
)
def test_a_plan_refuses_it_before_anything_is_made(stack: str, asked: dict[str, Any], said: str) -> None:
    workspace = Workspace.find(Path(__file__).parent)
    lab, name = catalog.load_catalog(workspace).stack(stack)
    with lab_error("setting-not-served") as raised:
        make_plan(workspace, lab, name, Options(set={"engine": "vllm", **asked}))
    assert said in raised.value.why


def test_without_the_packages_up_names_the_one_command(tmp_path: Path) -> None:
    workspace = Workspace(Workspace.find(Path(__file__).parent).root, tmp_path)
    lab, name = catalog.load_catalog(workspace).stack("inflight-batching")
    plan = make_plan(workspace, lab, name, Options(set={"engine": "vllm"}))
    with lab_error("layer-missing"):
        refuse_unservable(plan, LocalRuntime(workspace), workspace)


def scheduler(running: int, free: int, budget: int = 64, chunked: bool = True, watermark: int = 0) -> Any:
    return SimpleNamespace(
        running=[None] * running,
        max_num_running_reqs=3,
        block_size=32,
        max_num_scheduled_tokens=budget,
        scheduler_config=SimpleNamespace(enable_chunked_prefill=chunked),
        cache_config=SimpleNamespace(enable_prefix_caching=False),
        kv_cache_config=SimpleNamespace(kv_cache_groups=[None]),
        kv_cache_manager=SimpleNamespace(
            block_pool=SimpleNamespace(get_num_free_blocks=lambda: free, num_gpu_blocks=11), watermark_blocks=watermark
        ),
    )


def told(state: Any, **more: Any) -> Any:
    """The same scheduler, which only some versions of vLLM have like this."""
    return SimpleNamespace(**vars(state), **more)


WAITS = SimpleNamespace(num_tokens=100, status=None)  # four blocks of 32


@pytest.mark.parametrize(
    ("state", "tokens", "preempted", "reason", "numbers"),
    [
        (scheduler(3, 5), 3, False, "no slot", {}),
        (scheduler(2, 5), 64, False, "no tokens", {"tokens": 100, "room": 0}),
        (scheduler(2, 5, chunked=False), 2, False, "no tokens", {"tokens": 100, "room": 62}),
        (scheduler(2, 3), 2, False, "no KV block", {"need": 4, "used": 7, "reserve": 0, "blocks": 10}),
        (scheduler(2, 8), 2, True, "no KV block", {"need": 4, "used": 2, "reserve": 0, "blocks": 10}),
        (scheduler(2, 5, watermark=2), 2, False, "no KV block", {"need": 4, "used": 5, "reserve": 2, "blocks": 10}),
        (scheduler(2, 8), 2, False, None, {}),  # it would have fitted: a reason that is not known here is none
        (told(scheduler(2, 5), num_waiting_for_streaming_input=1), 3, False, "no slot", {}),
        (told(scheduler(3, 3), _pause_state=SimpleNamespace(name="PAUSED_NEW")), 64, False, None, {}),
        (told(scheduler(3, 5), _pause_state=SimpleNamespace(name="UNPAUSED")), 64, False, "no slot", {}),
    ],
)
def test_the_reason_is_the_first_condition_that_stopped_the_queue(
    state: Any, tokens: int, preempted: bool, reason: str | None, numbers: dict[str, int]
) -> None:
    because = why_not_admitted(state, WAITS, tokens, preempted, 10)
    assert because == (reason, numbers)
    assert why_not_admitted(state, None, tokens, preempted, 10).why is None


def waits(id: str, status: str) -> Any:
    return SimpleNamespace(request_id=id, num_tokens=100, status=SimpleNamespace(name=status))


@pytest.mark.parametrize("name", ["waiting", "skipped_waiting", "kv_holding_waiting"])
def test_a_request_that_waits_for_its_grammar_gives_its_reason_to_no_other(name: str) -> None:
    """Whichever of its queues a version of vLLM keeps such a request in."""
    state = scheduler(2, 3)
    state.waiting = [waits("b", "WAITING")]
    held = [waits("a", "WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR")]
    setattr(state, name, held + (state.waiting if name == "waiting" else []))
    cached = SimpleNamespace(req_ids=[], num_computed_tokens=[], num_output_tokens=[], resumed_req_ids=set())
    output = SimpleNamespace(scheduled_cached_reqs=cached, scheduled_new_reqs=[], preempted_req_ids=None)
    output.num_scheduled_tokens, output.scheduled_spec_decode_tokens, output.total_num_scheduled_tokens = {}, {}, 2
    decided = decision(state, output, 0.0)
    assert dict(zip(decided.waiting, decided.whys, strict=True)) == {"a": "not ready", "b": "no KV block"}
    assert decided.queue == 2


class Engine:
    """The calls of `vllm.LLMEngine` that a failed step needs."""

    def __init__(self, broken: bool) -> None:
        self.broken, self.aborted = broken, [""]
        core = SimpleNamespace(
            scheduler=SimpleNamespace(running=[], waiting=[], in_flight=StepsInFlight()), batch_queue=None
        )
        self.vllm_config = SimpleNamespace(model_config=SimpleNamespace(get_vocab_size=lambda: 300))
        self.engine_core = SimpleNamespace(engine_core=core)

    def abort_request(self, ids: list[str], internal: bool) -> None:
        if self.broken:
            raise RuntimeError("the core is gone")
        self.aborted = ids

    def reset_prefix_cache(self) -> bool:
        return True


def test_after_a_failed_step_every_request_has_its_error() -> None:
    engine = Engine(broken=False)
    vllm = VllmScheduler(engine, settings(max_tokens_in_paged_kv_cache="320"))
    request = Request("1", [5], 3)
    vllm._requests["a"] = request
    error = ValueError("the step failed")
    assert vllm.abandon(error) == [request] and request.end is End.FAILED and vllm.idle
    assert request.error is error and engine.aborted == ["a"]


def test_an_engine_that_cannot_even_let_go_is_dead_and_says_so() -> None:
    """The loop ends with it, and the server (labserve/driver.py)."""
    with pytest.raises(RuntimeError, match="the core is gone"):
        VllmScheduler(Engine(broken=True), settings(max_tokens_in_paged_kv_cache="320")).abandon(ValueError("?"))


@pytest.mark.parametrize(("reason", "end"), [("abort", End.FAILED), ("error", End.FAILED), ("stop", End.DONE)])
def test_an_answer_that_vllm_cut_has_failed_and_did_not_stop(reason: str, end: End) -> None:
    vllm = VllmScheduler(Engine(False), settings(max_tokens_in_paged_kv_cache="320"))
    request = Request("1", [5], 3, number=1)
    vllm._requests["1"], vllm._prompts["1"], request.handle = request, 1, "1"
    answer = SimpleNamespace(token_ids=[7], finish_reason=reason, logprobs=None)
    output = SimpleNamespace(request_id="1", outputs=[answer], finished=True)
    step = Step(["1"], phase="d", requests=[request])
    vllm._collect(step, {1: output})
    assert step.finished == [request] and request.end is end and bool(request.error) == (end is End.FAILED)
    assert request.why == {"stop": "stop"}.get(reason, "failed")


def test_a_text_that_is_longer_than_a_sequence_is_refused_with_its_own_numbers() -> None:
    vllm = VllmScheduler(Engine(False), settings(max_tokens_in_paged_kv_cache="320"))
    request = VllmTextRequest("1", [5] * 400, 0, SimpleNamespace(max_tokens=16))  # type: ignore[arg-type]
    with pytest.raises(BadInput, match=r"^text_input: 400 prompt and 0 output tokens are more"):
        vllm.submit(request)


def test_sampling_parameters_that_are_nested_too_deeply_are_refused_by_name() -> None:
    deep = np.array([b"[" * 100_000], dtype=object)
    with pytest.raises(BadInput, match=r"^sampling_parameters: "):
        json_of(lambda name: deep, SimpleNamespace())


class Theirs:
    """Stands for vLLM's `Scheduler`."""


def test_a_scheduler_beside_the_model_must_subclass_the_one_that_it_replaces(tmp_path: Path) -> None:
    assert class_beside(None, Theirs) is class_beside(tmp_path, Theirs) is Theirs
    (tmp_path / "scheduler.py").write_text("class Scheduler: pass\n")
    with pytest.raises(ValueError, match=r"scheduler\.py: it needs a class Scheduler\(.*Theirs\)"):
        class_beside(tmp_path, Theirs)
    (tmp_path / "scheduler.py").write_text(f"from {__name__} import Theirs\nclass Scheduler(Theirs): pass\n")
    found = class_beside(tmp_path, Theirs)
    assert issubclass(found, Theirs) and found is not Theirs


@pytest.mark.parametrize(("text", "said"), [("{", "vllm.json: "), ("[8]", "vllm.json: it holds an object")])
def test_engine_arguments_beside_the_model_are_an_object(tmp_path: Path, text: str, said: str) -> None:
    assert arguments_beside(None) == arguments_beside(tmp_path) == {}
    (tmp_path / "vllm.json").write_text('{"max_num_seqs": 8}')
    assert arguments_beside(tmp_path) == {"max_num_seqs": 8}
    (tmp_path / "vllm.json").write_text(text)
    with pytest.raises(ValueError, match=said):
        arguments_beside(tmp_path)


def test_an_exercise_with_vllm_is_refused_before_the_learners_file_is_blamed(tmp_path: Path) -> None:
    workspace = Workspace(ROOT, tmp_path)
    session = Session(workspace, catalog.load_catalog(workspace), Silent())
    exercise = find_exercise(find_exercises(workspace, session.catalog), "08a")
    with lab_error("layer-missing"):
        server.refuse_runtime(session, exercise, "local")


def test_what_keeps_an_engine_waiting_is_received_after_its_next_step() -> None:
    """The step in flight has 2 tokens, at 10 ms each: requests are received for 20 ms, and no longer."""
    vllm = VllmScheduler(Engine(False), settings(max_tokens_in_paged_kv_cache="320"))
    assert vllm.patience_s == float("inf"), "nothing is in flight, so that nobody waits"
    vllm._token_s = 0.01
    flying = SimpleNamespace(tokens={"a": 1, "b": 1})
    vllm._scheduler.in_flight.add(None, flying)
    assert vllm.patience_s == pytest.approx(0.02)
    flying.tokens = {"a": 8192}
    assert vllm.patience_s == PATIENCE_S[1]
