"""The complete lab that docs/develop/writing-a-lab.md shows."""

from __future__ import annotations

from pathlib import Path

import page_files
from checkout import ROOT

EXAMPLE = "example-lab"
PAGE = ROOT / "docs" / "develop" / "writing-a-lab.md"


def files() -> dict[str, str]:
    """Each file's text, by its path in a checkout."""
    return page_files.files(EXAMPLE)


def put_into(root: Path) -> None:
    """Add the lab to a checkout; nothing that is there is changed."""
    page_files.put_into(root, EXAMPLE)
