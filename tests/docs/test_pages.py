"""What the pages say can be followed: links, files, commands and keys are there. ``make docs`` also builds the site."""

from __future__ import annotations

import ast
import difflib
import re
import subprocess
import sys
from dataclasses import fields
from inspect import getmembers, isfunction, signature
from pathlib import Path

import page_lab
import pytest
from checkout import ROOT

from labctl import catalog, lab
from labctl.cli.commands import COMMANDS
from labctl.learn.exercise import ExerciseManifest
from labctl.learn.trial import Trial
from labctl.workspace import Workspace

WRITTEN = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False).stdout
FILES = [ROOT / name for name in WRITTEN.split("\0") if name and (ROOT / name).is_file()]
PAGES = [path for path in FILES if path.suffix == ".md"]
LESSONS = sorted(ROOT.glob("labs/*/README.md"))
LABS = catalog.load_catalog(Workspace(ROOT, ROOT / "unused")).labs
BLOCKS = re.compile(r"^```\w*\n(.*?)^```$|((?:^(?:> ?)? {4}\S[^\n]*\n)+)", re.M | re.S)
ENDLESS = re.compile(r"labctl (?:watch|chat)\b|labctl metrics .*--follow|^locust ")
NAMED_PAGE = re.compile(r"(?<!/main/)\bdocs/[\w/-]+\.md\b")
WRITING = ROOT / "docs" / "develop"


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_link_of_a_page_leads_to_a_file(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_every_page_that_code_help_or_an_error_names_is_there() -> None:
    skipped = {ROOT / "CHANGELOG.md"}
    texts = [path for path in FILES if path.suffix not in (".png", ".gif", ".json") and path not in skipped]
    pages = {page: path for path in texts for page in NAMED_PAGE.findall(path.read_text("utf-8", errors="ignore"))}
    assert len(pages) > 10
    assert {page: path for page, path in pages.items() if not (ROOT / page).is_file()} == {}


@pytest.mark.parametrize("page", LESSONS, ids=named)
def test_every_file_that_a_lesson_names_is_there(page: Path) -> None:
    files = re.findall(r"`((?:src|model_repos|labs|tests|scripts)/[\w./-]+\.\w+)`", page.read_text(encoding="utf-8"))
    assert [name for name in files if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("taught", LABS, ids=lambda lab: lab.folder)
def test_every_lesson_says_how_to_edit_its_models_and_links_the_page_that_gets_them_back(taught: lab.Lab) -> None:
    lesson = (ROOT / "labs" / taught.folder / "README.md").read_text(encoding="utf-8")
    assert "(../../docs/guide/edit-see-undo.md)" in lesson
    assert any(f"labctl reload {name}`" in lesson for name in (taught.short, *taught.stacks))


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_make_target_and_command_of_a_page_is_there_and_none_follows_one_that_does_not_end(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    code = "\n".join(re.findall(r"`[^`\n]+`|^ {4}.+$|^(?:make|labctl) .+$", text, re.MULTILINE))
    made = {name for name in re.findall(r"(?:^ *|`|&& )make ([a-z][a-z-]*)", code, re.M) if name[:4] != "lab-"}
    if page.name != "CHANGELOG.md":
        assert made - targets == set()
        assert set(re.findall(r"^(?:\s{4}|`)?labctl ([a-z]+)", code, re.MULTILINE)) - COMMANDS.keys() == set()
    for block in BLOCKS.finditer(text):
        lines = [line.strip(" >") for line in (block[1] or block[2]).splitlines() if line.strip(" >")]
        late = [line for at, line in enumerate(lines) if any(ENDLESS.match(before) for before in lines[:at])]
        assert late == [], f"{lines[0]} ...: these would never run"


def test_readme_and_make_help_have_every_lab_and_no_other() -> None:
    row = re.compile(r"^\| \[(\d\d) [^\]]+\]\(labs/([^/]+)/README\.md\) \| `make lab-([^`]+)` \|", re.M)
    shown = row.findall((ROOT / "README.md").read_text())
    assert shown == [(lab.number, lab.folder, lab.short) for lab in LABS]
    listed = subprocess.run(
        ["make", "--no-print-directory", "help"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    lines = [line.split(maxsplit=1) for line in listed.stdout.splitlines() if line.strip().startswith("lab-")]
    assert lines == [[f"lab-{lab.short}", f"lab {lab.number}: {lab.title}"] for lab in LABS]


def test_lab_02_prints_the_difference_of_its_two_models() -> None:
    simple, iterative = (
        (ROOT / f"model_repos/iterative/{name}-gpt2/1/model.py").read_text(encoding="utf-8").splitlines(keepends=True)
        for name in ("simple", "iterative")
    )
    hunks = list(difflib.unified_diff(simple, iterative, n=1))[2:]
    page = (ROOT / "labs/02-iterative-scheduling/README.md").read_text(encoding="utf-8")
    assert f"```diff\n{''.join(hunks)}```" in page


def test_writing_a_lab_names_everything_that_a_lab_may_say() -> None:
    words = [*signature(lab.setting).parameters]
    for each in (lab.Served, lab.Stack, lab.Probe, lab.Bench, lab.BareEngine, lab.Verdict, lab.Lab):
        words += [field.name for field in fields(each)]
    words += [name for name in dir(lab.LabRun) if not name.startswith("_")]
    words += [name for name in dir(lab.Place) if not name.startswith("_")]
    page = page_lab.PAGE.read_text(encoding="utf-8")
    assert sorted({word for word in words if f"`{word}`" not in page}) == []


def test_the_example_of_a_lab_imports_what_is_there() -> None:
    trees = [ast.parse(text) for path, text in page_lab.files().items() if path.endswith(".py")]
    imports = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    ours = [ast.unparse(node) for node in imports if str(node.module).startswith(("labctl", "labkit", "labsched"))]
    assert len(ours) >= 4
    done = subprocess.run([sys.executable, "-c", "\n".join(ours)], capture_output=True, text=True, check=False)
    assert done.stderr == ""


def test_writing_an_exercise_names_every_key_and_every_method_of_a_trial() -> None:
    page = (WRITING / "writing-an-exercise.md").read_text(encoding="utf-8")
    assert [key for key in ExerciseManifest.model_fields if f"`{key}`" not in page] == []
    methods = page.partition("`trial` has these methods:\n\n")[2].partition("\n\n")[0]
    cells = re.findall(r"^- (.+?): ", methods, re.M)
    listed = {name for cell in cells for name in re.findall(r"`(\w+)", cell)}
    assert listed == {name for name, _ in getmembers(Trial, isfunction) if not name.startswith("_")}
