"""Engines that many tests serve, made by one process: each build of labctl's own imports PyTorch and exporters anew.

What is not among them a stack makes itself when it comes up.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from checkout import ROOT
from filelock import FileLock

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


class Making:
    """A process that makes the engines that the cache lacks. Only one works at a time: it holds ``lock``.

    A process, because a test that replaces ``time.sleep`` replaces it for every thread beside it.
    """

    def __init__(self, cache: Path, lock: Path) -> None:
        self._log = lock.with_suffix(f".{os.getpid()}.log")
        argv = [sys.executable, "-X", "faulthandler", __file__, str(cache), str(lock)]
        with self._log.open("w") as log:
            self._process = subprocess.Popen(argv, stdout=log, stderr=log)

    def wait(self) -> None:
        """Return when they are made."""
        assert self._process.wait(600) == 0, self._log.read_text()


if __name__ == "__main__":
    place = Workspace(ROOT, Path(sys.argv[1]))
    with FileLock(sys.argv[2]):
        if not all(build.ready(place) for build in builds()):
            engines.skip_unused_imports()
            serving.defer_imports()  # PyTorch's compiler, too, until ONNX wants it
            for each in builds():
                each.make(place, print)
    os._exit(0)  # taking all that was imported apart takes a second
