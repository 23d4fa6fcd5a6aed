"""Every page of docs/ that code, help, errors or files name is there."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = re.compile(r"(?<!/main/)\bdocs/[\w/-]+\.md\b")


def test_every_page_that_a_file_of_the_checkout_names_exists() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    names: dict[str, list[str]] = {}
    for file in filter(None, listed.split("\0")):
        path = ROOT / file
        if path.is_file() and path.name not in ("CHANGELOG.md", "tokenizer.json") and path.suffix != ".png":
            for page in PAGE.findall(path.read_text(encoding="utf-8", errors="ignore")):
                names.setdefault(page, []).append(file)
    assert len(names) > 10
    assert {page: files for page, files in names.items() if not (ROOT / page).is_file()} == {}
