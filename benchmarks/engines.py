"""The engines side by side: OpenVINO GenAI, vLLM, transformers, and lab 02's own decoder, on the same two shapes.

Each side is a process that has its model loaded. In each round every side computes once, at one and at eight sequences,
so that a slow minute slows all of them. Prompts have 128 tokens, answers 48, all prompts are in the first step.
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any

from benchmarks.decode import Side
from benchmarks.decode_worker import BATCH, NEW, PROMPT
from labctl.artifacts import engines, weights
from labctl.listener import Silent
from labctl.runtimes.layers import layer
from labctl.stack.session import Session
from labkit.tables import format_table

MODELS = ("random:gpt2", "random:llama-100m")
OWN = "gpt2"  # in the name of a model that lab 02's decoder can compute
SEQUENCES = (1, BATCH)
COLUMNS = ("engine", "precision", "sequences", "step ms", "prompts ms", "tokens/s", "step / vLLM's")


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--models", nargs="+", default=MODELS, help="engines: the shapes to compare them on")


def run(asked: argparse.Namespace) -> dict[str, Any]:
    """Medians over the rounds after a first one that warms up."""
    session = Session.open(Silent())
    return {model: _compare(session, model, asked.rounds) for model in asked.models}


def _compare(session: Session, model: str, rounds: int) -> dict[str, Any]:
    sides = _sides(session, model)
    measured = [
        {key: {count: side.once(count) for count in SEQUENCES} for key, side in sides.items()}
        for _ in range(rounds + 1)
    ][1:]
    for side in sides.values():
        side.close()
    rows, found = [], []
    for name, precision in sides:
        for count in SEQUENCES:
            mine = [one[name, precision][count] for one in measured]
            theirs = [one["vLLM", precision][count] for one in measured]
            first, step = (statistics.median(one[part] for one in mine) for part in ("first", "step"))
            ratio = statistics.median(a["step"] / b["step"] for a, b in zip(mine, theirs, strict=True))
            rate = count * NEW / (first + (NEW - 1) * step)
            values = (step * 1e3, first * 1e3, rate, ratio)
            rows.append((name, precision, str(count), *map("{:.2f}".format, values)))
            found.append(dict(zip(COLUMNS, (name, precision, count, *values), strict=True)))
    print(f"\n{model}: prompts of {PROMPT} tokens, {NEW} new ones, medians of {rounds} rounds in turn")
    print(format_table(rows, COLUMNS, right=range(2, len(COLUMNS))))
    return {"medians": found}


def _sides(session: Session, model: str) -> dict[tuple[str, str], Side]:
    """By engine and precision: its own choice, or fp32."""

    def silent(text: str) -> None: ...

    workspace, vllm = session.workspace, layer("vllm", session.workspace)
    vllm.require()
    folder = str(weights.parse_source(model).make(workspace, silent))
    sides: dict[tuple[str, str], Side] = {}
    for precision, stored in (("own", "fp16"), ("fp32", "fp32")):
        built = engines.request("openvino", model, {"precision": stored}).make(workspace, silent)
        sides["OpenVINO GenAI", precision] = Side("inflight:openvino", str(built), precision)
        sides["vLLM", precision] = Side("inflight:vllm", folder, precision, packages=vllm.environment)
        sides["transformers", precision] = Side("inflight:transformers", folder, precision)
        if OWN in model:
            sides["lab 02", precision] = Side("labs", folder, "auto" if precision == "own" else precision)
    return sides
