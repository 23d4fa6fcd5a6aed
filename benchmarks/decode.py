"""The speed of lab 02's own decoding: against an earlier checkout, and against OpenVINO GenAI, on the same model."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from benchmarks.decode_worker import BATCH, NEW, PROMPT
from labctl.artifacts import engines, weights
from labctl.listener import Silent
from labctl.stack.session import Session
from labkit.tables import format_table

MODEL = "random:gpt2"
HERE = "lab 02, fp32"
LAB = "labs/02-iterative-scheduling/lab.py"


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--precision", default="fp32", help="decode: also lab 02 in other numbers (auto, bf16, fp16)")


def run(asked: argparse.Namespace) -> dict[str, Any]:
    """Each side in a process of its own, asked in turn; medians over the rounds after a first one that warms up."""
    session = Session.open(Silent())

    def silent(text: str) -> None: ...

    folder = str(weights.parse_source(MODEL).make(session.workspace, silent))
    engine = str(engines.request("openvino", MODEL, {"precision": "fp32"}).make(session.workspace, silent))
    sides = {HERE: Side("labs", folder, "fp32"), "OpenVINO GenAI, fp32": Side("openvino", engine, "fp32")}
    if asked.precision != "fp32":
        sides |= {
            f"lab 02, {asked.precision}": Side("labs", folder, asked.precision),
            "OpenVINO GenAI, its own choice": Side("openvino", engine, ""),
        }
    if asked.against:
        sides["the other checkout"] = Side("labs", folder, "", asked.against.resolve())
    rounds = [{name: side.once() for name, side in sides.items()} for _ in range(asked.rounds + 1)][1:]
    for side in sides.values():
        side.close()
    found = {
        name: {part: 1e3 * statistics.median(one[name][part] for one in rounds) for part in ("first", "step")}
        for name in sides
    }
    rows = []
    for name, ms in found.items():
        ratio = statistics.median(one[name]["step"] / one[HERE]["step"] for one in rounds)
        found[name]["step_over_ours"] = ratio
        rate = f"{BATCH / ms['step'] * 1e3:.0f}"
        rows.append((name, f"{ms['step']:.1f}", rate, f"{ratio:.2f}", f"{ms['first']:.0f}"))
    print(f"{MODEL}, {BATCH} sequences, prompts of {PROMPT} tokens, {NEW} new ones; {asked.rounds} rounds in turn")
    print(format_table(rows, ("", "step, ms", "tokens/s", "step / ours", "prompts, ms"), right=range(1, 5)))
    return {"medians_ms": found, "rounds_s": rounds}


class Side:
    """A process that has its model loaded, and computes when it is asked."""

    def __init__(
        self,
        kind: str,
        folder: str,
        precision: str,
        checkout: Path | None = None,
        packages: Mapping[str, str] | None = None,
    ) -> None:
        here = Path(__file__).parents[1]
        lab = yaml.safe_load(((checkout or here) / LAB).read_text(encoding="utf-8"))
        env = {**os.environ, **lab["stacks"]["iterative"]["server"]["env"]}  # as the checkout's stack is served
        env |= {"PYTHONPATH": str(checkout / "src")} if checkout else {}
        env |= packages or {}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.decode_worker", kind, folder, precision],
            cwd=here,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._line()

    def once(self, sequences: int = BATCH) -> dict[str, float]:
        """Seconds of the first step and, in the median, of the others; and how many steps there were."""
        assert self._process.stdin
        self._process.stdin.write(f"{sequences}\n" if sequences != BATCH else "\n")
        self._process.stdin.flush()
        found: dict[str, float] = json.loads(self._line())
        return found

    def _line(self) -> str:
        assert self._process.stdout
        while (line := self._process.stdout.readline()) and not line.startswith(("ready", "{")):
            pass  # a library has something to say
        if not line:
            raise RuntimeError("a side of the comparison has ended; what it said is above")
        return line

    def close(self) -> None:
        self._process.communicate()
