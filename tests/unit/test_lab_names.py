"""What people find a lab by, the README and make, is held against the catalogue."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from labctl.manifest.catalog import load
from labctl.manifest.schema import Lab
from labctl.workspace import Workspace

ROOT = Path(__file__).resolve().parents[2]
LABS = load(Workspace(ROOT, ROOT / "unused")).labs


def make(*arguments: str) -> str:
    quiet = ["make", "--no-print-directory", *arguments]  # `make test` is a make above this one
    return subprocess.run(quiet, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test_the_readmes_table_has_every_lab_and_no_other() -> None:
    row = re.compile(r"^\| \[(\d\d) [^\]]+\]\(labs/([^/]+)/README\.md\) \| `make lab-([^`]+)` \|", re.M)
    shown = row.findall((ROOT / "README.md").read_text())
    assert shown == [(lab.number, lab.folder, lab.short) for lab in LABS]


def test_every_lab_has_the_page_that_the_readme_links() -> None:
    assert [lab.folder for lab in LABS if not (ROOT / "labs" / lab.folder / "README.md").is_file()] == []


def test_make_help_lists_every_lab_from_its_manifest() -> None:
    lines = [line.split(maxsplit=1) for line in make("help").splitlines()]
    assert [line for line in lines if line[0].startswith("lab-")] == [
        [f"lab-{lab.short}", f"lab {lab.number}: {lab.title}"] for lab in LABS
    ]


@pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.short)
def test_make_runs_a_lab_by_its_short_name(lab: Lab) -> None:
    said = make("-n", "-o", ".venv/.ready", f"lab-{lab.short}", "ARGS=--quick")
    assert said.splitlines()[0].endswith(f"labctl run {lab.short} --quick")
