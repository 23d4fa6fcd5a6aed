"""Export a GPT-2 as one graph from token ids to logits, and compare it with the original, shape by shape.

``labctl up sequence`` does the same by itself and keeps the result in its cache. This is for seeing the step:

    .venv/bin/python scripts/export_gpt2.py onnx --output /tmp/onnx
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from labbuild.exports import TOLERANCE, Gpt2Export, Onnx, TorchScript
from labctl.artifacts import weights
from labctl.workspace import Workspace
from labkit.errors import LabError

FORMATS: dict[str, Gpt2Export] = {engine.name: engine for engine in (Onnx(), TorchScript())}


def main() -> int:
    parser = argparse.ArgumentParser(description="Export a GPT-2 and compare the result with the original.")
    parser.add_argument("format", choices=list(FORMATS))
    parser.add_argument("--model", default="shipped:tiny-gpt2", help="shipped:NAME, random:SHAPE, hub:ID or a folder")
    parser.add_argument("--output", type=Path, required=True, help="the folder that the file is written into")
    asked = parser.parse_args()
    try:
        original = weights.parse_source(asked.model).make(Workspace.find(), print)
        asked.output.mkdir(parents=True, exist_ok=True)
        made = FORMATS[asked.format].make(original, {}, asked.output, print, None)
    except LabError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"\nbatch x length, and the largest difference of a logit (at most {TOLERANCE:g} is rounding)")
    for shape, difference in made["differences"].items():
        print(f"  {shape:>7}  {difference:.1e}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
