"""A bundle: what is in it, and what its installer refuses before anything is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from checkout import ROOT
from lab_errors import lab_error
from machinery import git

from labctl.bundle import pack
from labctl.listener import Silent
from labctl.workspace import Workspace

#: Stands in for make: says that it was called, and with what.
MAKE = '#!/bin/sh\necho "$@ $PIP_NO_INDEX $PIP_FIND_LINKS" >made\n'

MADE = 1_000_000_000  # when the engine was made

Install = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    """A small checkout with a cache in which one engine lies."""
    root, cache = tmp_path / "checkout", tmp_path / "cache"
    for name in ("scripts/install_bundle.sh", "docker/install-packages.sh", "pyproject.toml", ".gitignore"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, root / name)
    (root / "README.md").write_text("read me")
    (root / "results").mkdir()
    (root / "results" / "mine.json").write_text("{}")
    engine = cache / "engines" / "openvino-0123456789"
    engine.mkdir(parents=True)
    (engine / "model.bin").write_bytes(bytes(1000))
    os.utime(engine / "model.bin", (MADE, MADE))
    (cache / "engines" / ".openvino-0123456789.lock").touch()
    return Workspace(root, cache)


@pytest.fixture
def bundle(workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    def wheels(workspace: Workspace, stage: Path, listener: object) -> None:
        (stage / "wheels").mkdir()
        (stage / "wheels" / "click-8.5.1-py3-none-any.whl").write_bytes(b"wheel")

    monkeypatch.setattr(pack, "_wheels", wheels)
    engine = workspace.cache / "engines" / "openvino-0123456789"
    pack.write_bundle(tmp_path / "b.tar", workspace, ["02"], [engine, engine], [], Silent())
    return tmp_path / "b.tar"


@pytest.fixture
def extracted(bundle: Path, tmp_path: Path) -> Path:
    """The bundle on another machine."""
    there = tmp_path / "there"
    there.mkdir()
    subprocess.run(["tar", "-xf", bundle, "-C", there], check=True)  # as people do
    return there


@pytest.fixture
def install(extracted: Path, tmp_path: Path) -> Install:
    """Run ``./install`` there, where ``make`` only says that it was called."""
    tools = tmp_path / "tools"
    tools.mkdir()

    def run(**stand_ins: str) -> subprocess.CompletedProcess[str]:
        for name, script in {"make": MAKE, **stand_ins}.items():
            (tools / name).write_text(script)
            (tools / name).chmod(0o755)
        env = {
            **os.environ,
            "PATH": f"{tools}:{os.environ['PATH']}",
            "LABS_CACHE": str(tmp_path / "their-cache"),
            "LABS_PYTHON": sys.executable,
        }
        return subprocess.run(["./install"], cwd=extracted, env=env, capture_output=True, text=True, check=False)

    return run


def refused(done: subprocess.CompletedProcess[str], where: Path, *words: str) -> None:
    assert done.returncode == 1
    assert all(word in done.stderr for word in words), done.stderr
    assert not (where / "made").exists() and not (where.parent / "their-cache").exists()


def test_a_whole_bundle_is_installed_from_its_own_wheels(install: Install, extracted: Path) -> None:
    done = install()
    assert (extracted / "made").read_text() == f"setup PYTHON={sys.executable} 1 .bundle/wheels\n", done


def test_weights_and_engines_are_where_labctl_looks(install: Install, tmp_path: Path) -> None:
    install()
    assert (tmp_path / "their-cache/engines/openvino-0123456789/model.bin").stat().st_size == 1000


def test_files_keep_their_times_so_that_what_was_compiled_of_a_layer_stays_valid(
    install: Install, tmp_path: Path
) -> None:
    install()
    assert (tmp_path / "their-cache/engines/openvino-0123456789/model.bin").stat().st_mtime == MADE


def test_installing_twice_changes_nothing(install: Install, tmp_path: Path) -> None:
    install()
    made = tmp_path / "their-cache/engines/openvino-0123456789/model.bin"
    before = made.stat()
    install()
    assert made.stat() == before
    assert [path.name for path in (tmp_path / "their-cache/engines").iterdir()] == ["openvino-0123456789"]


@pytest.mark.parametrize("name", ["README.md", ".bundle/wheels/click-8.5.1-py3-none-any.whl"])
def test_fault_31_a_damaged_file_is_refused_by_its_hash(install: Install, extracted: Path, name: str) -> None:
    (extracted / name).write_bytes(b"damaged")
    refused(install(), extracted, name, "damaged")


def test_a_missing_file_is_refused(install: Install, extracted: Path) -> None:
    (extracted / ".bundle/cache/engines/openvino-0123456789/model.bin").unlink()
    refused(install(), extracted, "model.bin", "damaged")


def test_fault_31_a_bundle_that_ends_early_is_refused(install: Install, extracted: Path) -> None:
    (extracted / ".bundle/SHA256SUMS").unlink()
    refused(install(), extracted, "not a whole bundle")


def test_fault_31_another_version_is_refused_by_name(install: Install, extracted: Path) -> None:
    about = extracted / ".bundle/about"
    about.write_text(about.read_text().replace("version=0", "version=7"))
    refused(install(), extracted, "is of version 7.1.0", "here is of 0.1.0")


def test_fault_31_another_processor_is_refused_by_name(install: Install, extracted: Path) -> None:
    done = install(uname="#!/bin/sh\necho Linux aarch64\n")
    refused(done, extracted, "is for Linux x86_64", "this machine is Linux aarch64")


def test_another_python_is_refused_by_name(install: Install, extracted: Path) -> None:
    about = extracted / ".bundle/about"
    about.write_text(about.read_text().replace("python=3", "python=2"))
    refused(install(), extracted, "for Python 2.")


def test_what_git_ignores_stays_at_home(bundle: Path) -> None:
    with tarfile.open(bundle) as tar:
        names = tar.getnames()
    assert "README.md" in names
    assert not [name for name in names if name.startswith("results") or name.endswith(".lock")]


def test_only_what_is_committed_or_staged_is_taken_from_a_clone(workspace: Workspace) -> None:
    git(workspace.root, "init", "-q")
    git(workspace.root, "add", "README.md")
    (workspace.root / "token.txt").write_text("secret")
    assert pack.checkout_files(workspace.root) == [Path("README.md")]


def test_a_copy_without_git_keeps_the_folders_that_only_the_root_ignores(workspace: Workspace) -> None:
    """`/exercises/` is the learner's folder; labs/*/exercises/ is shipped."""
    for name in (
        "labs/02/exercises/02a/task.md",
        "exercises/02a/mine.py",
        "labs/02/__pycache__/x.pyc",
        "install",
        "src/install",
        "m/model.py.yours-1",
    ):
        (workspace.root / name).parent.mkdir(parents=True, exist_ok=True)
        (workspace.root / name).touch()
    taken = {path.as_posix() for path in pack.checkout_files(workspace.root)}
    assert {"labs/02/exercises/02a/task.md", "src/install"} <= taken
    assert not taken & {"exercises/02a/mine.py", "labs/02/__pycache__/x.pyc", "install", "m/model.py.yours-1"}


def test_every_file_that_git_has_is_in_a_bundle_of_a_copy_without_git(tmp_path: Path) -> None:
    if not shutil.which("git") or not (ROOT / ".git").exists():
        pytest.skip("this checkout is no clone")
    tracked = pack.checkout_files(ROOT)
    for path in tracked:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / path, tmp_path / path)
    assert pack.checkout_files(tmp_path) == tracked


def test_fault_50_a_clone_without_git_is_told_before_anything_is_made(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    (workspace.root / ".git").mkdir()
    monkeypatch.setenv("PATH", str(workspace.root))
    with lab_error("tracked-files-unknown"):
        pack.checkout_files(workspace.root)


def test_nothing_is_left_when_the_wheels_cannot_be_had(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (workspace.root / "requirements").mkdir()
    (workspace.root / "requirements/torch.txt").write_text("torch==2.13.0\n")
    (workspace.root / "requirements/labs.txt").write_text("click==8.5.1 --hash=sha256:00\n")
    monkeypatch.delenv("LABS_TORCH_INDEX", raising=False)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    target = tmp_path / "out" / "b.tar"
    target.parent.mkdir()
    with lab_error("wheels-not-downloaded"):
        pack.write_bundle(target, workspace, ["02"], [], [], Silent())
    assert list(target.parent.iterdir()) == []


def test_size_and_time_are_in_the_estimate(workspace: Workspace) -> None:
    engine = workspace.cache / "engines" / "openvino-0123456789"
    small, large = pack.estimate(workspace, []), pack.estimate(workspace, [engine])
    assert large.total - small.total == 1000
    assert large.seconds > large.wheels / pack.NET, "the download counts"
    unmade = pack.estimate(workspace, [], to_make=3)
    assert (unmade.total, str(unmade).count("GB and")) == (small.total, 2), "what it is, and what it may become"
