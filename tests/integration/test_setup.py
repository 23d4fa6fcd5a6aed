"""`make setup` where pip or Python is told to do something else elsewhere: what is installed goes into .venv."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest
from checkout import ROOT

WHEEL = "docker/torch-1+cpu-py3-none-any.whl"


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One that has a tiny wheel in PyTorch's place and no other package: setup ends after the first."""
    folder = tmp_path_factory.mktemp("setup") / "checkout"
    for name in ("scripts", "docker", "requirements"):
        (folder / name).mkdir(parents=True)
    for name in ("Makefile", "scripts/setup.sh", "scripts/find_python.sh", "docker/install-packages.sh"):
        shutil.copy2(ROOT / name, folder / name)
    (folder / "pyproject.toml").touch()
    (folder / "requirements/labs.txt").touch()
    (folder / "requirements/torch.txt").write_text("torch==1\n")
    with (folder / "docker/install-packages.sh").open("a") as script:
        script.write("exit 3\n")
    with zipfile.ZipFile(folder / WHEEL, "w") as wheel:
        wheel.writestr("tiny.py", "")
        wheel.writestr("torch-1+cpu.dist-info/METADATA", "Metadata-Version: 2.1\nName: torch\nVersion: 1+cpu\n")
        wheel.writestr("torch-1+cpu.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("torch-1+cpu.dist-info/RECORD", "")
    return folder


def setup(folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    for left in [*folder.glob(".venv/lib/*/site-packages/tiny.py"), *folder.glob(".venv/lib/*/site-packages/torch-*")]:
        shutil.rmtree(left) if left.is_dir() else left.unlink()
    words = {**os.environ, "HOME": str(folder.parent / "home"), "LABS_CACHE": str(folder.parent / "cache")}
    words |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str((folder / WHEEL).parent), **env}
    argv = ["bash", str(folder / "scripts/setup.sh"), sys.executable]
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
    other = checkout.parent / "other"
    venv.create(other)
    told = {"PIP_USER": "1", "PIP_REQUIRE_VIRTUALENV": "1", "PYTHONPATH": str(elsewhere), "PYTHONHOME": "/nowhere"}
    told |= {name: str(elsewhere) for name in ("PIP_TARGET", "PIP_PREFIX", "PIP_ROOT")}
    told |= {"PIP_PYTHON": str(other / "bin/python"), "PIP_DRY_RUN": "1", "PIP_REQUIREMENT": "/nowhere"}
    done = setup(checkout, **told, **conda(checkout))
    (installed,) = checkout.parent.rglob("tiny.py")
    assert installed.is_relative_to(checkout / ".venv"), done.stderr
    assert [path.name for path in elsewhere.iterdir()] == ["numpy"]


@pytest.mark.parametrize("setting", ["target = far", "python = far"])
def test_what_a_file_of_pip_says_of_other_environments_does_not_hold(checkout: Path, setting: str) -> None:
    (file := checkout.parent / "pip.conf").write_text(f"[global]\n{setting}\n")
    done = setup(checkout, PIP_CONFIG_FILE=str(file))
    (installed,) = checkout.parent.rglob("tiny.py")
    assert installed.is_relative_to(checkout / ".venv"), done.stderr


def test_what_a_file_of_pip_says_of_where_packages_are_holds(checkout: Path) -> None:
    far = checkout.parent / "far wheels"
    far.mkdir()
    (file := checkout.parent / "pip.conf").write_text(f"[install]\nfind-links =\n    /nowhere\n    {far.as_uri()}\n")
    shutil.copy2(checkout / WHEEL, far)
    done = setup(checkout, PIP_CONFIG_FILE=str(file), PIP_FIND_LINKS="")
    assert [*(checkout / ".venv").rglob("tiny.py")], done.stderr


def makes_anew(folder: Path, *words: str) -> bool:
    """Whether `make setup` would do something."""
    env = {name: word for name, word in os.environ.items() if not name.startswith(("MAKE", "MFLAGS", "LABS_PYTHON"))}
    argv = ["make", "--question", "--silent", "setup", *words]
    return subprocess.run(argv, cwd=folder, env=env, check=False).returncode == 1


def test_a_finished_setup_is_done_again_for_another_python_alone(checkout: Path, tmp_path: Path) -> None:
    venv.create(checkout / ".venv", symlinks=True)
    (checkout / ".venv/.ready").touch()
    (other := tmp_path / "python").write_text("#!/bin/sh\necho /of/another/python\n")
    other.chmod(0o755)
    same = f"PYTHON={sys.executable}"
    assert [makes_anew(checkout, *words) for words in ([], [same], [f"PYTHON={other}"])] == [False, False, True]


def test_another_python_replaces_the_environment(checkout: Path) -> None:
    python = checkout / ".venv/bin/python"
    python.parent.mkdir(parents=True, exist_ok=True)
    python.unlink(missing_ok=True)
    python.write_text("#!/bin/sh\necho /of/another/python\n")
    python.chmod(0o755)
    setup(checkout)
    assert python.is_symlink()


def test_for_a_box_without_a_network_the_locked_wheels_are_downloaded_and_not_installed(
    checkout: Path, tmp_path: Path
) -> None:
    """docs/guide/offline.md."""
    wheel = checkout / WHEEL
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    (tmp_path / "labs.txt").write_text(f"torch==1+cpu --hash=sha256:{digest}\n")
    env = {"LABS_PIP": f"{sys.executable} -m pip", "LABS_DOWNLOAD": "wheels", "PIP_FIND_LINKS": str(wheel.parent)}
    argv = ["sh", str(ROOT / "docker/install-packages.sh"), "labs.txt"]
    subprocess.run(argv, cwd=tmp_path, env={**os.environ, **env, "PIP_NO_INDEX": "1"}, check=True)
    assert [path.name for path in (tmp_path / "wheels").iterdir()] == [wheel.name]
