"""Where a server finds libraries: its own first, and then those that its caller named, as the driver's may be."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from checkout import ROOT

from labctl.runtimes import wheel

THEIRS = "/usr/lib64-nvidia:/opt/cuda/compat"


@pytest.mark.parametrize("theirs", [THEIRS, "", None])
def test_the_callers_libraries_come_after_a_servers_own(monkeypatch: pytest.MonkeyPatch, theirs: str | None) -> None:
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    triton = wheel.Wheel(Path("/site"), "0")
    own = wheel.environment(triton)["LD_LIBRARY_PATH"]
    if theirs is not None:
        monkeypatch.setenv("LD_LIBRARY_PATH", theirs)
    assert wheel.environment(triton)["LD_LIBRARY_PATH"] == (f"{own}:{theirs}" if theirs else own)


@pytest.mark.parametrize("theirs", [THEIRS, ""])
def test_so_they_do_in_a_container(tmp_path: Path, theirs: str) -> None:
    triton = tmp_path / "bin" / "tritonserver"
    triton.parent.mkdir()
    triton.write_text('#!/bin/sh\necho "$LD_LIBRARY_PATH"\n')
    triton.chmod(0o755)
    env = {"PATH": os.environ["PATH"], "TRITON_HOME": str(tmp_path), **({"LD_LIBRARY_PATH": theirs} if theirs else {})}
    said = subprocess.run(["sh", ROOT / "docker" / "serve.sh"], env=env, capture_output=True, text=True, check=True)
    own = f"{tmp_path}/wheel-libs:{tmp_path}/lib"
    assert said.stdout.strip() == (f"{own}:{theirs}" if theirs else own)
