"""What NVIDIA's plain image has, in throw-away environments: its onnxruntime and its PyTorch.

They are made from the package index and kept in the tests' cache.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkout import ROOT
from environments import COSTLY, OURS, WITH_TORCH, environment

from labctl.artifacts import engines
from labctl.workspace import Workspace

PLAIN_ONNXRUNTIME = "1.20.1"  # of the image 25.02, by upstream's compatibility matrix
IMAGES_TORCH = "2.7.1"  # 25.02 has a build of its own from shortly before 2.7

pytestmark = [pytest.mark.proof, COSTLY]


def test_the_exported_onnx_file_gives_the_same_logits_in_the_images_onnxruntime(cache: Path) -> None:
    import onnxruntime

    path = engines.request("onnx", "shipped:tiny-gpt2", {}).make(Workspace(ROOT, cache), print) / "model.onnx"
    script = (
        "import json, sys, numpy, onnxruntime as o\n"
        "s = o.InferenceSession(sys.argv[1], providers=['CPUExecutionProvider'])\n"
        "x = numpy.array([[1, 2, 3, 4]] if len(s.get_inputs()[0].shape) == 2 else [1, 2, 3, 4], dtype=numpy.int64)\n"
        "print(json.dumps([o.__version__, s.run(None, {s.get_inputs()[0].name: x})[0].tolist()]))\n"
    )

    def ran(python: str) -> Any:
        argv = [python, "-c", script, str(path)]
        return json.loads(subprocess.run(argv, capture_output=True, text=True, check=True).stdout)

    wanted = (f"onnxruntime=={PLAIN_ONNXRUNTIME}", "numpy==1.26.4")
    other = environment(cache, f"onnxruntime-{PLAIN_ONNXRUNTIME}", OURS, *wanted)
    (here, ours), (there, theirs) = ran(OURS), ran(other)
    assert here == onnxruntime.__version__
    assert there == PLAIN_ONNXRUNTIME
    np.testing.assert_allclose(theirs, ours, atol=1e-4)


@WITH_TORCH
def test_the_exported_torchscript_gives_the_same_logits_in_the_images_pytorch(cache: Path) -> None:
    path = engines.request("torchscript", "shipped:tiny-gpt2", {}).make(Workspace(ROOT, cache), print) / "model.pt"
    script = (
        "import json, sys, torch\n"
        "with torch.inference_mode():\n"
        "    logits = torch.jit.load(sys.argv[1])(torch.tensor([[1, 2, 3, 4]]))\n"
        "print(json.dumps([torch.__version__.partition('+')[0], logits.tolist()]))\n"
    )

    def ran(python: str) -> Any:
        argv = [python, "-c", script, str(path)]
        return json.loads(subprocess.run(argv, capture_output=True, text=True, check=True).stdout)

    other = environment(cache, f"torch-{IMAGES_TORCH}", OURS, "numpy==1.26.4", torch=IMAGES_TORCH)
    (_, ours), (there, theirs) = ran(OURS), ran(other)
    assert there == IMAGES_TORCH
    np.testing.assert_allclose(theirs, ours, atol=1e-4)
