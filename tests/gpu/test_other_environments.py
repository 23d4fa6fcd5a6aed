"""What the images have, in throw-away environments: their builders' packages and their onnxruntime.

They are made from the package index, which takes minutes: LABS_PROOFS=1 or LABS_REQUIRE_DOCKER=1 (as in CI) runs them.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from machinery import ROOT

from labctl import engines
from labctl.trtllm.releases import release
from labctl.workspace import Workspace

PLAIN_ONNXRUNTIME = "1.20.1"  # of the image 25.02, by upstream's compatibility matrix
# What is not on PyPI: TensorRT-LLM itself and its TensorRT.
ELSEWHERE = ("git+", "tensorrt==", "tensorrt_llm==")
# What must come out of it, or the builder does not start.
RESOLVED = {
    "0.5.0": {"torch": "2.1.0", "transformers": "4.31.0", "cuda-python": "12.2.0", "numpy": "1.24.4"},
    "0.8.0": {"torch": "2.1.2", "cuda-python": "12.8.0", "numpy": "1.26.4", "pynvml": "11.5.0"},
}

pytestmark = [
    pytest.mark.proof,
    pytest.mark.skipif(
        not (os.environ.get("LABS_PROOFS") or os.environ.get("LABS_REQUIRE_DOCKER")),
        reason="makes environments of its own, which takes minutes: LABS_PROOFS=1",
    ),
]


def pip(python: str, *arguments: str) -> None:
    """Run pip of that Python; skip where no index answers, except in CI."""
    argv = [python, "-m", "pip", "--disable-pip-version-check", *arguments]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=900)
    if done.returncode and "No matching distribution" not in done.stderr and not os.environ.get("LABS_REQUIRE_DOCKER"):
        pytest.skip(f"no package index answers: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr[-2000:]


def environment(folder: Path, python: str, *packages: str) -> str:
    """A venv of that Python with these packages; its interpreter."""
    subprocess.run([python, "-m", "venv", str(folder)], check=True)
    inside = str(folder / "bin" / "python")
    pip(inside, "install", "-q", *packages)
    return inside


@pytest.fixture(scope="session")
def python310() -> str:
    """Python 3.10, which the images up to 24.11 have."""
    found = [shutil.which("python3.10"), *Path.home().glob(".pyenv/versions/3.10.*/bin/python")]
    for candidate in filter(None, reversed(found)):
        done = subprocess.run([str(candidate), "-c", "import ensurepip"], capture_output=True, check=False)
        if done.returncode == 0:
            return str(candidate)
    pytest.skip("no Python 3.10 here; Debian bookworm has none either")


@pytest.mark.parametrize("name", RESOLVED)
def test_what_a_release_installs_resolves_to_what_its_builder_was_made_for(
    python310: str, tmp_path: Path, name: str
) -> None:
    wanted = [word for word in release(name).install.split() if not word.startswith(ELSEWHERE)]
    assert {word.partition("==")[0] for word in wanted} >= RESOLVED[name].keys()
    report = tmp_path / "report.json"
    pip(python310, "install", "-q", "--dry-run", "--ignore-installed", "--report", str(report), *wanted)
    found = {
        item["metadata"]["name"].lower(): item["metadata"]["version"]
        for item in json.loads(report.read_text())["install"]
    }
    assert {key: found[key] for key in RESOLVED[name]} == RESOLVED[name]


def test_the_exported_onnx_file_gives_the_same_logits_in_the_images_onnxruntime(tmp_path: Path, cache: Path) -> None:
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

    other = environment(tmp_path / "venv", sys.executable, f"onnxruntime=={PLAIN_ONNXRUNTIME}", "numpy==1.26.4")
    (here, ours), (there, theirs) = ran(sys.executable), ran(other)
    assert here == onnxruntime.__version__
    assert there == PLAIN_ONNXRUNTIME
    np.testing.assert_allclose(theirs, ours, atol=1e-4)
