"""What the images have, in throw-away environments: their builders' packages and their onnxruntime.

They are made from the package index and kept in the tests' cache.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkout import ROOT
from environments import COSTLY, OURS, WITH_TORCH, environment, python310, uv_pip

from labbuild.releases import release
from labctl.artifacts import engines
from labctl.workspace import Workspace

PLAIN_ONNXRUNTIME = "1.20.1"  # of the image 25.02, by upstream's compatibility matrix
IMAGES_TORCH = "2.7.1"  # 25.02 has a build of its own from shortly before 2.7
# What is not on PyPI: TensorRT-LLM itself and its TensorRT.
ELSEWHERE = ("git+", "tensorrt==")
# What must come out of it, or the builder does not start.
RESOLVED = {"torch": "2.1.0", "transformers": "4.31.0", "cuda-python": "12.2.0", "numpy": "1.24.4"}
IMAGES_PYTHON = "3.10"

pytestmark = [pytest.mark.proof, COSTLY]


def resolved(folder: Path, wanted: list[str]) -> dict[str, str]:
    """Versions by package that would be installed for the images' Python."""
    (folder / "wanted.txt").write_text("\n".join(wanted))
    platform = ("--python-version", IMAGES_PYTHON, "--python-platform", "x86_64-unknown-linux-gnu")
    said = uv_pip("compile", str(folder / "wanted.txt"), *platform, "--no-header", "--no-annotate")
    return dict(line.split("==") for line in said.splitlines())


def test_what_0_5_0_installs_resolves_to_what_its_builder_was_made_for(tmp_path: Path) -> None:
    wanted = [word for word in release("0.5.0").install.split() if not word.startswith(ELSEWHERE)]
    assert {word.partition("==")[0] for word in wanted} >= RESOLVED.keys()
    installed = resolved(tmp_path, wanted)
    assert {key: installed[key] for key in RESOLVED} == RESOLVED


def constrained(folder: Path) -> dict[str, str]:
    """The environment in which docker/server.gpu.Dockerfile installs a release's builder, by the file's own line."""
    text = (ROOT / "docker/server.gpu.Dockerfile").read_text()
    (wanted,) = re.findall(r"echo '(.*)' > /build/constraints.txt", text)
    (folder / "constraints.txt").write_text(wanted)
    names = re.findall(r"(PIP_\w*CONSTRAINT)=/build/constraints.txt", text)
    return {**os.environ, **dict.fromkeys(names, str(folder / "constraints.txt"))}


@pytest.mark.skipif(not shutil.which("mpicc"), reason="no MPI to build against here (apt-get install libopenmpi-dev)")
def test_what_0_5_0_installs_from_sources_can_be_built(cache: Path, tmp_path: Path) -> None:
    """mpi4py 3.1.5 is no wheel, and a setuptools of today has no distutils that it builds with."""
    (package,) = (word for word in release("0.5.0").install.split() if word.startswith("mpi4py=="))
    python = environment(cache, "pip-of-the-images", python310(), "pip==23.3.2")
    argv = [python, "-m", "pip", "wheel", "--no-deps", "--no-cache-dir", "--wheel-dir", str(tmp_path), package]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=constrained(tmp_path))
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert list(tmp_path.glob("mpi4py-3.1.5-*.whl"))


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
