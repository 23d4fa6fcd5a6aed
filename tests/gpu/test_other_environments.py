"""What the images have, in throw-away environments: their builders' packages and their onnxruntime.

They are made from the package index and kept in the tests' cache.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from environments import COSTLY, OURS, kept, pip, python310
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
RESOLVE_S = 300  # pip reads the metadata of every wheel, and some of them are large

pytestmark = [pytest.mark.proof, COSTLY]


def resolved(cache: Path, wanted: list[str]) -> dict[str, str]:
    """Versions by package that pip of Python 3.10 would install; asked again only for another list."""

    def ask(folder: Path) -> None:
        arguments = ["--dry-run", "--ignore-installed", "--report", str(folder / "report.json")]
        pip(python310(), "install", "-q", *arguments, *wanted, timeout=RESOLVE_S)

    key = hashlib.sha256("\n".join(wanted).encode()).hexdigest()[:12]
    report = kept(cache, f"resolved-{key}", ask) / "report.json"
    found = (item["metadata"] for item in json.loads(report.read_text())["install"])
    return {each["name"].lower(): each["version"] for each in found}


@pytest.mark.parametrize("name", RESOLVED)
def test_what_a_release_installs_resolves_to_what_its_builder_was_made_for(cache: Path, name: str) -> None:
    wanted = [word for word in release(name).install.split() if not word.startswith(ELSEWHERE)]
    assert {word.partition("==")[0] for word in wanted} >= RESOLVED[name].keys()
    found = resolved(cache, wanted)
    assert {key: found[key] for key in RESOLVED[name]} == RESOLVED[name]


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

    def make(folder: Path) -> None:
        subprocess.run([OURS, "-m", "venv", str(folder)], check=True)
        pip(str(folder / "bin" / "python"), "install", "-q", f"onnxruntime=={PLAIN_ONNXRUNTIME}", "numpy==1.26.4")

    other = kept(cache, f"onnxruntime-{PLAIN_ONNXRUNTIME}", make)
    (here, ours), (there, theirs) = ran(OURS), ran(str(other / "bin" / "python"))
    assert here == onnxruntime.__version__
    assert there == PLAIN_ONNXRUNTIME
    np.testing.assert_allclose(theirs, ours, atol=1e-4)
