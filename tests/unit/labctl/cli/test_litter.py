"""What tools leave beside a model is no part of it: not rendered, no edit, not judged, in no image."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path, PurePath

import pytest
from checkout import ROOT
from hypothesis import given, settings
from hypothesis import strategies as st

from labctl import litter, repository
from labctl.workspace import Workspace

MODEL = "model_repos/own/m"
# How a tool calls what it leaves beside a file of that name (whole, without its ending, ending).
LEFT = st.sampled_from(
    "{whole}~ .{whole}.swp .{whole}.swo .{whole}.un~ #{whole}# .#{whole} 4913 {whole}___jb_tmp___ {whole}.orig "
    "{whole}.bak .ipynb_checkpoints/{stem}-checkpoint{end} .ipynb_checkpoints/{whole} .DS_Store "
    "__pycache__/{stem}.cpython-311.pyc ._{whole} Thumbs.db desktop.ini "
    ".idea/{whole} .vscode/settings.json .~lock.{whole}# {whole}c "
    ".goutputstream-X1Y2Z3 .nfs0000000000a1 .{whole}.kate-swp __MACOSX/._{whole} .git/{whole}".split()
)
NAMES = st.sampled_from(["model.py", "config.pbtxt", "tokenizer.json", "labels.txt", "lab.py"]) | st.from_regex(
    r"[a-z][a-z0-9_.-]{0,8}[a-z0-9]\.(py|json|txt|pbtxt)", fullmatch=True
)


@st.composite
def left_paths(draw: st.DrawFn) -> str:
    """A path of what a tool left, below the checkout."""
    name, folder = draw(NAMES), draw(st.sampled_from([MODEL, f"{MODEL}/1", "model_repos/own", "labs/01-l", "labs"]))
    stem, dot, end = name.rpartition(".")
    template = draw(LEFT.filter(lambda found: found != "{whole}c" or name.endswith(".py")))
    return f"{folder}/{template.format(whole=name, stem=stem, end=dot + end)}"


@pytest.fixture
def checkout(tmp_path: Path) -> Workspace:
    root = tmp_path / "c~"  # the folder's own name does not matter
    files = {
        f"{MODEL}/config.pbtxt": 'name: "m"\nbackend: "python"\n',
        f"{MODEL}/1/model.py": "",
        "labs/01-l/lab.py": "",
        ".gitignore": "results/\n",
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    for name in ("docker", "src", "pyproject.toml", "models"):
        (root / name).symlink_to(ROOT / name)
    return Workspace(root, tmp_path / "cache")


def seen(workspace: Workspace) -> tuple[object, ...]:
    """All that our commands take from the model's folder."""
    output = workspace.folder("s").repository
    request = repository.RenderRequest([workspace.model_repos / "own"], [], {}, output)
    shutil.rmtree(output, ignore_errors=True)
    models = repository.render_repository(request)
    rendered = sorted(str(path.relative_to(output)) for path in output.rglob("*") if path.is_file())
    return models, rendered, sorted(repository.origins(request)), repository.find_differences(request)


@settings(max_examples=25)
@given(paths=st.lists(left_paths(), min_size=1, max_size=4))
def test_nothing_that_a_tool_left_is_a_part_of_a_model(checkout: Workspace, paths: list[str]) -> None:
    before = seen(checkout)
    written = [checkout.root / path for path in paths]
    for path in written:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("def broken(")
    try:
        assert seen(checkout) == before
    finally:
        for path in written:
            path.unlink(missing_ok=True)


def test_an_emacs_lock_leads_nowhere_and_is_no_fault(checkout: Workspace) -> None:
    before = seen(checkout)
    (checkout.root / MODEL / "1" / ".#model.py").symlink_to("user@host.123:456")
    assert seen(checkout) == before


@given(name=NAMES, folders=st.lists(st.sampled_from(["1", "m", "labs", "lib"]), max_size=3))
def test_what_a_person_writes_is_no_litter(name: str, folders: list[str]) -> None:
    assert not litter.is_litter(PurePath(*folders, name))


def test_nothing_that_is_shipped_is_litter() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    paths = [PurePath(line) for line in listed.splitlines()]
    assert [path for path in paths if litter.is_litter(path) and path.name != ".gitkeep"] == []


def test_an_image_is_built_of_the_files_that_name_it() -> None:
    """A build copies whole folders: what its name does not say must not be in it."""
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    for pattern in (*litter.FOLDERS, *litter.FILES):
        assert f"**/{pattern}" in ignored or pattern == ".gitkeep"
