"""The packages of vLLM for the tests: those that `make setup-vllm` installed, or a reason to skip."""

from __future__ import annotations

import multiprocessing
import os
import shutil
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
from checkout import ROOT

from labctl.recordings.vllm import _read_first
from labctl.runtimes.layers import layer
from labctl.workspace import Workspace

REQUIRED = "LABS_REQUIRE_VLLM"
USUAL = Path.home() / ".cache" / "triton-labs"


def require_vllm(cache: Path) -> Path:
    """The layer's folder in the tests' cache: where it is only in the usual one, made by hard links."""
    wanted, usual = (layer("vllm", Workspace(ROOT, folder)) for folder in (cache, USUAL))
    if not wanted.ready and usual.ready:
        wanted.path.parent.mkdir(parents=True, exist_ok=True)
        part = wanted.path.with_name(f".{wanted.path.name}.part-{os.getpid()}")
        shutil.copytree(usual.path, part, copy_function=os.link)
        part.rename(wanted.path)
    if not wanted.ready:
        if os.environ.get(REQUIRED):
            pytest.fail(f"{REQUIRED} is set, and vLLM is not installed in {cache} or {USUAL}: make setup-vllm")
        pytest.skip("vLLM is not installed: make setup-vllm")
    return wanted.path


def process_with_vllm(cache: Path) -> ProcessPoolExecutor:
    """A process whose Python finds vLLM. To import it takes seconds, so it should be one for all tests of a file."""
    spawn, packages = multiprocessing.get_context("spawn"), str(require_vllm(cache))
    return ProcessPoolExecutor(1, spawn, initializer=_read_first, initargs=(packages,))
