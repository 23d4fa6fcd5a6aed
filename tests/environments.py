"""Throw-away environments out of the package index, for proofs about other Pythons and other packages than ours."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from filelock import FileLock

from labctl.workspace import replace_dir

# One reason for all that costs more than 20 s, or an environment of its own: CI runs it, `make test` stays quick.
COSTLY = pytest.mark.skipif(
    not (os.environ.get("LABS_PROOFS") or os.environ.get("LABS_REQUIRE_DOCKER")),
    reason="a proof that takes longer than 20 s: LABS_PROOFS=1 runs it",
)


def pip(python: str, *arguments: str, timeout: float = 300) -> None:
    """Run pip of that Python; skip where no index answers, except in CI."""
    argv = [python, "-m", "pip", "--disable-pip-version-check", *arguments]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=timeout)
    if done.returncode and "No matching distribution" not in done.stderr and not os.environ.get("LABS_REQUIRE_DOCKER"):
        pytest.skip(f"no package index answers: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr[-2000:]


def kept(cache: Path, name: str, make: Callable[[Path], None]) -> Path:
    """The folder of that name in the cache of proofs, made the first time; it is whole, or not there."""
    folder = cache / "proofs" / name
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            with replace_dir(folder) as new:
                make(new)
    return folder


def packages(cache: Path, python: str, *wanted: str) -> Path:
    """A folder for PYTHONPATH with exactly these packages (``name==version``), without what they require."""
    name = "-".join([*(word.replace("==", "-") for word in wanted), *version(python)])
    arguments = ("install", "-q", "--no-deps", "--target")
    return kept(cache, name, lambda new: pip(python, *arguments, str(new), *wanted))


@functools.cache
def version(python: str) -> tuple[str, ...]:
    """``("3", "10")``."""
    code = "import sys; print(*sys.version_info[:2])"
    return tuple(subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.split())


def python310() -> str:
    """Python 3.10 with pip, which the images up to 24.11 have: LABS_PYTHON310, or one on PATH or of pyenv; or skip."""
    for candidate in _candidates():
        code = "import sys, pip; sys.exit(sys.version_info[:2] != (3, 10))"
        done = subprocess.run([candidate, "-c", code], capture_output=True, check=False)
        if done.returncode == 0:
            return candidate
    pytest.skip("no Python 3.10 with pip here (Debian bookworm has none): LABS_PYTHON310 names one")


def _candidates() -> Iterator[str]:
    if named := os.environ.get("LABS_PYTHON310"):
        yield named
    for folder in sorted(Path.home().glob(".pyenv/versions/3.10.*")):
        yield str(folder / "bin" / "python")
    if found := shutil.which("python3.10"):
        yield found


OURS = sys.executable
