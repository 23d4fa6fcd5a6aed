"""What the sources may say and import: nothing of a lab."""

from __future__ import annotations

import ast
import re

from checkout import ROOT

from labctl.catalog import load_catalog
from labctl.workspace import Workspace

SOURCES = ROOT / "src"
PACKAGES = ("labbuild", "labctl", "labkit", "labsched")
IMPORTED = re.compile(r"^ *(?:from|import) (\w+)", re.MULTILINE)
TENSOR = re.compile(r'name: *"([^"$]+)"')
# What TensorRT-LLM, NVIDIA's vLLM backend and Hugging Face's exporters call things in every release.
UPSTREAM = (
    "labbuild/",
    "labsched/scheduler.py",
    "labsched/replay/vllm_scheduler.py",
    "labkit/client/trtllm.py",
    "labkit/client/text_model.py",
)
# labctl's own words, which some model uses for a tensor as well; a key of manifests; and the names that vLLM's and
# TensorRT-LLM's backends share, which clients assume unless they are given others.
OWN = set("temperature top_k top_p repetition_penalty presence_penalty seed stream tokenizer ensemble logits".split())
OWN |= set("READY stop waits tensorrt_llm text_input text_output max_tokens end_id streaming".split())
OWN |= {"image", "finish_reason", "return_finish_reason", "logprobs"}  # of manifests, of records, and of vLLM


def names() -> set[str]:
    """Models of all labs, and the tensors of their configurations."""
    labs = load_catalog(Workspace(ROOT, ROOT / "unused")).labs
    models = {model for lab in labs for stack in lab.stacks.values() for model in stack.models}
    configs = (ROOT / "model_repos").rglob("config.pbtxt")
    return models | {name for path in configs for name in TENSOR.findall(path.read_text(encoding="utf-8"))}


def test_no_source_names_a_labs_model_or_tensor() -> None:
    """What labctl knows of them, it has from the manifest or from Triton."""
    known = names() - OWN
    assert {"iterative-gpt2", "INPUT_0", "ensemble_pipeline"} <= known
    told = [
        f"{path.relative_to(SOURCES)}:{node.lineno}: {node.value}"
        for package in PACKAGES
        for path in (SOURCES / package).rglob("*.py")
        if not str(path.relative_to(SOURCES)).startswith(UPSTREAM)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in known
    ]
    assert told == []


def test_labs_import_labkit_and_nothing_of_labctl() -> None:
    sources = [path for name in ("labs", "docs") for path in (ROOT / name).rglob("*.py")]
    packages = {path: set(IMPORTED.findall(path.read_text(encoding="utf-8"))) for path in sources}
    assert sum("labkit" in found for found in packages.values()) > len(list((ROOT / "labs").glob("*/lab.py")))
    programs = {path for path, found in packages.items() if "labctl" in found}
    assert {path.name for path in programs} == {"lab.py", "llm.py"}
