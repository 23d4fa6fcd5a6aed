"""Engines that many tests serve, made by one process: each build of labctl's own imports PyTorch and exporters anew.

What is not among them a stack makes itself when it comes up.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from checkout import ROOT

from labctl.artifacts import engines
from labctl.artifacts.engines import Build
from labctl.workspace import Workspace
from labserve import serving


def builds() -> list[Build]:
    return [
        engines.request("torchscript", "shipped:tiny-gpt2", {}),
        engines.request("openvino", "shipped:tiny-codegen", {"precision": "fp32"}),
        engines.request("openvino", "random:tiny-llama", {"precision": "fp16"}),
        engines.request("openvino", "random:tiny-llama", {"precision": "fp32"}),
        engines.request("openvino", "shipped:tiny-llama", {"precision": "fp16"}),
        engines.request("openvino", "shipped:tiny-llama-draft", {"precision": "fp16"}),
        engines.request("onnx", "shipped:tiny-gpt2", {}),
    ]


def make(cache: Path) -> None:
    """Those that are not in the cache yet."""
    if not all(build.ready(Workspace(ROOT, cache)) for build in builds()):
        argv = [sys.executable, "-X", "faulthandler", __file__, str(cache)]
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=600)
        assert done.returncode == 0, done.stderr


if __name__ == "__main__":
    engines.skip_unused_imports()
    serving.defer_imports()  # PyTorch's compiler, too, until ONNX wants it
    for each in builds():
        each.make(Workspace(ROOT, Path(sys.argv[1])), print)
    os._exit(0)  # taking all that was imported apart takes a second
