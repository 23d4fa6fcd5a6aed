"""Files that a page of docs/ shows in full, each below its path in a checkout."""

from __future__ import annotations

import re
from pathlib import Path

from machinery import ROOT

FILE = re.compile(r"^`(labs/[^`]+)`\n\n```\w*\n(.*?)^```$", re.M | re.S)


def files(page: str) -> dict[str, str]:
    """Each file's text, by its path in a checkout. ``page`` is a name in docs/."""
    return dict(FILE.findall((ROOT / "docs" / page).read_text(encoding="utf-8")))


def put_into(root: Path, page: str) -> None:
    """Add them to a checkout; nothing that is there is changed."""
    for name, text in files(page).items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
