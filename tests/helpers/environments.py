"""Throw-away environments out of the package index, for proofs about other packages than ours.

uv makes them: it resolves from metadata alone, in seconds where pip takes minutes, and its download cache is shared.
"""

from __future__ import annotations

import functools
import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import uv
from filelock import FileLock

from labkit.disk import replace_dir

# One reason for all that costs more than 20 s, or an environment of its own: .ci/night runs it.
COSTLY = pytest.mark.skipif(
    not os.environ.get("LABS_PROOFS"), reason="a proof that takes longer than 20 s: LABS_PROOFS=1 runs it"
)
TORCH_INDEX = os.environ.get("LABS_TORCH_INDEX", "")
WITH_TORCH = pytest.mark.skipif(
    not TORCH_INDEX, reason="another PyTorch is a large download: LABS_TORCH_INDEX names the package index for it"
)
ANSWER_S = 300  # what an index that answers at all needs at most
OURS = sys.executable


def uv_pip(*arguments: str, index: str = "") -> str:
    """Run ``uv pip`` (of the index, or of those that pip is set up with) and return its output.

    Skips where no index answers, except in CI.
    """
    argv = [uv.find_uv_bin(), "pip", *arguments, "--quiet", "--no-config"]
    done = subprocess.run(
        argv, capture_output=True, text=True, check=False, timeout=ANSWER_S, env={**os.environ, **_indexes(index)}
    )
    no_answer = any(words in done.stderr for words in ("error sending request", "Failed to fetch", "dns error"))
    if done.returncode and no_answer and not os.environ.get("LABS_REQUIRE_DOCKER"):
        pytest.skip(f"no package index answers: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def _indexes(index: str) -> dict[str, str]:
    """uv's words for how pip is set up on this machine, where nothing else is said to uv itself."""
    if index:
        return {"UV_DEFAULT_INDEX": index}
    said = {"PIP_INDEX_URL": "UV_DEFAULT_INDEX", "PIP_CERT": "SSL_CERT_FILE"}
    return {
        theirs: os.environ[name] for name, theirs in said.items() if name in os.environ and theirs not in os.environ
    }


def kept(cache: Path, name: str, make: Callable[[Path], None]) -> Path:
    """The folder of that name in the cache of proofs, made the first time; it is whole, or not there."""
    folder = cache / "proofs" / name
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            with replace_dir(folder) as new:
                make(new)
    return folder


def environment(cache: Path, name: str, python: str, *wanted: str, torch: str = "") -> str:
    """The Python of a virtual environment with these packages and what they require.

    Args:
        torch: the version of PyTorch that it has too, from ``TORCH_INDEX``.
    """

    def make(folder: Path) -> None:
        subprocess.run([uv.find_uv_bin(), "venv", "--quiet", "--no-config", "--python", python, folder], check=True)
        install = ("install", "--python", str(folder / "bin" / "python"))
        if torch:
            uv_pip(*install, f"torch=={torch}", index=TORCH_INDEX)
        uv_pip(*install, *wanted)

    key = hashlib.sha256("\n".join((*version(python), *wanted, torch)).encode()).hexdigest()[:10]
    return str(kept(cache, f"{name}-{key}", make) / "bin" / "python")


@functools.cache
def version(python: str) -> tuple[str, ...]:
    """``("3", "10")``."""
    code = "import sys; print(*sys.version_info[:2])"
    return tuple(subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.split())
