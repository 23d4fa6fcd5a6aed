"""Engines that many tests serve, made by one process: each build of labctl's own imports PyTorch and exporters anew.

What is not among them a stack makes itself when it comes up (lab 06's draft model, for one).
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from labctl import engines
from labctl.engines import Build
from labctl.workspace import Workspace

ROOT = Path(__file__).resolve().parents[1]


def builds() -> list[Build]:
    return [
        engines.request("onnx", "shipped:tiny-gpt2", {}),
        engines.request("torchscript", "shipped:tiny-gpt2", {}),
        engines.request("openvino", "shipped:tiny-codegen", {"precision": "fp32"}),
        engines.request("openvino", "random:tiny-llama", {"precision": "fp16"}),
        engines.request("openvino", "random:tiny-llama", {"precision": "fp32"}),
    ]


def make(cache: Path) -> None:
    """Those that are not in the cache yet."""
    if not all(build.ready(Workspace(ROOT, cache)) for build in builds()):
        done = subprocess.run([sys.executable, __file__, str(cache)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


if __name__ == "__main__":
    sys.modules.setdefault("sklearn", None)  # type: ignore[arg-type]
    for each in builds():
        each.make(Workspace(ROOT, Path(sys.argv[1])), print)
