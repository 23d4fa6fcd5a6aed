"""A lab is a folder: what labctl knows of a lab's models and their tensors, it has from the manifest or from Triton."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from labctl.manifest.catalog import load
from labctl.workspace import Workspace

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "src" / "labctl"
TENSOR = re.compile(r'name: *"([^"$]+)"')
UPSTREAM = ("trtllm", "engines")  # what TensorRT-LLM and Hugging Face's exporters call things in every release
# labctl's own words, which some model uses for a tensor as well; a key of manifests; and the names that vLLM's and
# TensorRT-LLM's backends share, which clients assume unless they are given others.
OWN = {"temperature", "top_k", "top_p", "repetition_penalty", "seed", "stream", "tokenizer", "ensemble", "logits"}
OWN |= {"READY", "stop", "waits", "tensorrt_llm", "text_input", "text_output", "max_tokens"}


def names() -> set[str]:
    """Models of all labs, and the tensors of their configurations."""
    labs = load(Workspace(ROOT, ROOT / "unused")).labs
    models = {model for lab in labs for stack in lab.stacks.values() for model in stack.models}
    configs = (ROOT / "model_repos").rglob("config.pbtxt")
    return models | {name for path in configs for name in TENSOR.findall(path.read_text(encoding="utf-8"))}


def test_no_source_names_a_labs_model_or_tensor() -> None:
    known = names() - OWN
    assert {"iterative-gpt2", "INPUT_0", "ensemble_pipeline"} <= known
    told = [
        f"{path.relative_to(SOURCES)}:{node.lineno}: {node.value}"
        for path in SOURCES.rglob("*.py")
        if path.relative_to(SOURCES).parts[0] not in UPSTREAM
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in known
    ]
    assert told == []
