"""`make setup` where pip or Python is told to do something else elsewhere: what is installed goes into .venv."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from checkout import ROOT

# In the place of what installs hundreds of megabytes: one package, by the same pip; then setup ends.
INSTALLS_ONE = (
    '$LABS_PIP install --force-reinstall --no-index --no-deps "$(dirname "$0")/tiny-1-py3-none-any.whl"; exit 3\n'
)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One whose packages are a single small one."""
    folder = tmp_path_factory.mktemp("setup") / "checkout"
    for name in ("scripts", "docker"):
        (folder / name).mkdir(parents=True)
    shutil.copy2(ROOT / "scripts/setup.sh", folder / "scripts")
    (script := folder / "docker/install-packages.sh").write_text(f"#!/bin/sh\n{INSTALLS_ONE}")
    script.chmod(0o755)
    with zipfile.ZipFile(folder / "docker/tiny-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("tiny.py", "")
        wheel.writestr("tiny-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1\n")
        wheel.writestr("tiny-1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("tiny-1.dist-info/RECORD", "")
    return folder


def setup(folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    argv = ["bash", str(folder / "scripts/setup.sh"), sys.executable]
    words = {**os.environ, "HOME": str(folder.parent / "home"), "LABS_CACHE": str(folder.parent / "cache"), **env}
    return subprocess.run(argv, env=words, capture_output=True, text=True, check=False)


def conda(folder: Path) -> dict[str, str]:
    """What an active conda environment sets."""
    prefix = folder.parent / "conda/envs/labs"
    (prefix / "conda-meta").mkdir(parents=True, exist_ok=True)
    return {"CONDA_PREFIX": str(prefix), "CONDA_DEFAULT_ENV": "labs", "CONDA_SHLVL": "1"}


def test_whatever_the_environment_tells_pip_and_python_the_packages_go_into_the_environment_of_the_checkout(
    checkout: Path,
) -> None:
    elsewhere = checkout.parent / "elsewhere"
    foreign = elsewhere / "numpy"
    foreign.mkdir(parents=True)
    (foreign / "__init__.py").write_text("raise ImportError('of another Python')")
    told = {"PIP_USER": "1", "PIP_REQUIRE_VIRTUALENV": "1", "PYTHONPATH": str(elsewhere), "PYTHONHOME": "/nowhere"}
    told |= {name: str(elsewhere) for name in ("PIP_TARGET", "PIP_PREFIX", "PIP_ROOT")}
    done = setup(checkout, **told, **conda(checkout))
    (installed,) = checkout.parent.rglob("tiny.py")
    assert installed.is_relative_to(checkout / ".venv"), done.stderr
    installed.unlink()  # as nothing was installed, for the tests that follow
    assert [path.name for path in elsewhere.iterdir()] == ["numpy"]


@pytest.mark.parametrize("key", ["target", "prefix", "root"])
def test_a_file_that_sends_packages_elsewhere_is_named_with_its_key(checkout: Path, key: str) -> None:
    (file := checkout.parent / "pip.conf").write_text(f"[install]\n{key} = {checkout.parent / 'far'}\n")
    done = setup(checkout, PIP_CONFIG_FILE=str(file))
    assert done.returncode == 1
    assert f"{key} = " in done.stderr and f"install.{key}" in done.stderr
    assert not (checkout.parent / "far").exists()


def test_a_file_that_wants_packages_for_the_user_alone_does_not_hinder(checkout: Path) -> None:
    (file := checkout.parent / "pip.conf").write_text("[install]\nuser = true\n")
    setup(checkout, PIP_CONFIG_FILE=str(file))
    (installed,) = checkout.parent.rglob("tiny.py")
    assert installed.is_relative_to(checkout / ".venv")


def test_for_a_box_without_a_network_the_locked_wheels_are_downloaded_and_not_installed(
    checkout: Path, tmp_path: Path
) -> None:
    """docs/guide/offline.md."""
    wheel = checkout / "docker/tiny-1-py3-none-any.whl"
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    (tmp_path / "labs.txt").write_text(f"tiny==1 --hash=sha256:{digest}\n")
    env = {"LABS_PIP": f"{sys.executable} -m pip", "LABS_DOWNLOAD": "wheels", "PIP_FIND_LINKS": str(wheel.parent)}
    argv = ["sh", str(ROOT / "docker/install-packages.sh"), "labs.txt"]
    subprocess.run(argv, cwd=tmp_path, env={**os.environ, **env, "PIP_NO_INDEX": "1"}, check=True)
    assert [path.name for path in (tmp_path / "wheels").iterdir()] == [wheel.name]
