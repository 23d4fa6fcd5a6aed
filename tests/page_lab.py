"""The complete lab of docs/writing-a-lab.md, taken out of the page."""

from __future__ import annotations

from pathlib import Path

import page_files
from machinery import ROOT

NAME = "writing-a-lab.md"
PAGE = ROOT / "docs" / NAME


def files() -> dict[str, str]:
    """Each file's text, by its path in a checkout."""
    return page_files.files(NAME)


def put_into(root: Path) -> None:
    """Add the lab to a checkout; nothing that is there is changed."""
    page_files.put_into(root, NAME)
