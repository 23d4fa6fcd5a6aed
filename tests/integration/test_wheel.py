"""The wheel: built from the sdist, installed outside of every checkout, and the working folder that it makes."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from checkout import ROOT
from machinery import taken_down

from labctl.bundle.pack import checkout_files

pytestmark = pytest.mark.night

BUILD = "import sys; from setuptools import build_meta as b; getattr(b, 'build_' + sys.argv[1])(sys.argv[2])"

Program = Callable[..., subprocess.CompletedProcess[str]]


def build(kind: str, source: Path, target: Path) -> Path:
    """What `python -m build` makes of a source tree, without its network; the built file."""
    target.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", BUILD, kind, target], cwd=source, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    (built,) = target.iterdir()
    return built


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of this checkout, without what else lies in it."""
    source = tmp_path_factory.mktemp("wheel") / "source"
    for path in checkout_files(ROOT):
        (source / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / path, source / path)
    return source


@pytest.fixture(scope="module")
def wheel(source: Path) -> Path:
    sdist = build("sdist", source, source.parent / "sdist")
    folder = source.parent / "unpacked"
    folder.mkdir()
    subprocess.run(["tar", "-xf", sdist, "-C", folder], check=True)  # tarfile's filter is newer than Python 3.11.2
    (unpacked,) = folder.iterdir()
    return build("wheel", unpacked, source.parent / "wheel")


@pytest.fixture(scope="module")
def program(wheel: Path) -> Program:
    """The script that uvx calls, in an environment with this wheel and the packages of ours."""
    place = wheel.parents[1] / "venv"
    venv.create(place, symlinks=True)
    scheme = {"base": str(place), "platbase": str(place)}
    packages = Path(sysconfig.get_path("purelib", "venv", scheme))
    packages.joinpath("ours.pth").write_text(sysconfig.get_path("purelib"))  # whose own .pth files are not read there
    pip = [sys.executable, "-m", "pip", "--python", str(place / "bin" / "python"), "install", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--no-compile", str(wheel)], check=True, capture_output=True)
    env = {key: value for key, value in os.environ.items() if key not in ("LABS_ROOT", "PYTHONPATH")}
    return functools.partial(_run, place / "bin" / "triton-serving-labs", env={**env, "DOCKER_HOST": "unix:///nowhere"})


def _run(
    program: Path, *arguments: str, cwd: Path, env: dict[str, str], status: int = 0
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([program, *arguments], cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def folder(program: Program, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    place = tmp_path_factory.mktemp("home")
    program("new", "labs", cwd=place)
    yield place / "labs"
    taken_down(place / "labs")


def test_the_new_folder_has_every_file_of_the_checkout(folder: Path) -> None:
    def files(root: Path) -> dict[str, tuple[bytes, int]]:
        paths = [path for path in checkout_files(root) if (root / path).is_file()]
        return {str(path): ((root / path).read_bytes(), (root / path).stat().st_mode & 0o111) for path in paths}

    new, ours = files(folder), files(ROOT)
    assert new.keys() ^ ours.keys() == set(), "MANIFEST.in names what the wheel has"
    assert [name for name in ours if new[name] != ours[name]] == []


def test_the_labs_are_listed_in_the_new_folder(program: Program, folder: Path) -> None:
    listed = program("list", cwd=folder).stdout
    assert listed == program("list", cwd=ROOT).stdout
    assert "iterative" in listed


def test_what_up_would_make_lies_in_the_new_folder(program: Program, folder: Path) -> None:
    planned = program("up", "iterative", "--dry-run", "--runtime", "local", cwd=folder).stdout
    assert str(folder / ".labs") in planned
    assert str(ROOT) not in planned.replace(sysconfig.get_path("purelib"), "")  # where Triton's own wheel is


def test_a_lab_runs_in_the_new_folder(program: Program, folder: Path) -> None:
    done = program("run", "iterative", "--quick", "--runtime", "local", "--ports", "auto", cwd=folder)
    assert "met " in done.stdout
    assert list(folder.glob("results/02-*/*/result.json"))


def test_outside_of_the_new_folder_the_error_names_the_command_that_makes_one(program: Program, tmp_path: Path) -> None:
    assert "labctl new DIR" in " ".join(program("list", cwd=tmp_path, status=1).stderr.split())


def test_an_editable_installation_holds_no_copy(source: Path, tmp_path: Path) -> None:
    editable = build("editable", source, tmp_path / "editable")
    assert editable.stat().st_size < 10**5
    assert not [path for path in source.rglob("checkout") if path.is_dir()]
