"""A real engine: exported from a tiny random Llama, and whole. What it computes: test_engine_contract.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from checkout import ROOT

from labctl.artifacts import engines
from labctl.workspace import Workspace

pytestmark = pytest.mark.night

SPEC = "random:tiny-llama"


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache in which nothing is yet: in that of all tests another one may have made this engine."""
    return tmp_path_factory.mktemp("fresh")


@pytest.fixture(scope="module")
def engine(fresh: Path) -> Path:
    """The folder, made as labctl makes it: in a process of its own."""
    argv = [sys.executable, *engines.request("openvino", SPEC, {"precision": "fp32"}).argv]
    env = {**os.environ, "LABS_CACHE": str(fresh), "HOME": str(fresh)}
    done = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert "exporting" in done.stderr
    return Path(json.loads(done.stdout)["path"])


def test_the_engine_is_where_the_plan_says_and_whole(engine: Path, fresh: Path) -> None:
    build = engines.request("openvino", SPEC, {"precision": "fp32"})
    workspace = Workspace(ROOT, fresh)
    assert build.locate(workspace) == engine
    assert build.ready(workspace)
    assert build.manifest(workspace)["versions"]["openvino-genai"]


def test_a_build_tells_nobody_of_itself(engine: Path, fresh: Path) -> None:
    """OpenVINO's telemetry remembers in ~/intel who it tells Google Analytics of."""
    assert not (fresh / "intel").exists()


def test_eight_bit_weights_are_really_smaller(engine: Path, fresh: Path) -> None:
    small = engines.request("openvino", SPEC, {"precision": "int8"}).make(Workspace(ROOT, fresh), print)
    sizes = [(folder / "openvino_model.bin").stat().st_size for folder in (engine, small)]
    assert sizes[1] < 0.4 * sizes[0]
    assert not list(small.glob("smaller*"))
