"""A stack of each lab, with settings under which tests share its server."""

from __future__ import annotations

from typing import Any

SEQUENCES = {
    "strategy": "direct",
    "generator": "onnx",
    "sampling": "greedy",
    "log_verbose": True,
    "threads": 1,
    "max_sequence_idle_microseconds": 600_000_000,
}
TINY = {"model": "random:tiny-llama"}
# lab: (stack, the model that is asked, settings, group of the tests that share the server)
LABS: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "sequence": ("sequence-batcher", "", SEQUENCES, "test_lab_sequence"),
    "iterative": ("iterative", "iterative-gpt2", {}, "iterative"),
    "llama": ("llama", "ensemble", TINY, "llama"),
    "codegen": ("codegen", "ensemble", {}, "codegen"),
    "batching": ("inflight-batching", "ensemble", TINY, "llm"),
    "schedulers": ("modern", "door", TINY, "modern"),
    # vLLM itself has tests of its own (test_vllm_engine.py, test_lab_vllm.py), where it is installed.
    "vllm": ("two-schedulers", "ensemble", {"engine": "openvino", "decoupled_mode": False}, "two-schedulers"),
    "scale": ("scaled", "streams", {}, "scaled"),
    "disaggregation": ("two-servers", "apart-gpt2", {"step_ms": 0, "token_ms": 0}, "two-servers"),
}
PROMPT = "I have lived in"
