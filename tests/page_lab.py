"""The complete lab of docs/writing-a-lab.md, taken out of the page."""

from __future__ import annotations

import re
from pathlib import Path

from machinery import ROOT

PAGE = ROOT / "docs" / "writing-a-lab.md"
FILE = re.compile(r"^`(labs/[^`]+)`\n\n```\w*\n(.*?)^```$", re.M | re.S)


def files() -> dict[str, str]:
    """Each file's text, by its path in a checkout."""
    return dict(FILE.findall(PAGE.read_text(encoding="utf-8")))


def put_into(root: Path) -> None:
    """Add the lab to a checkout; nothing that is there is changed."""
    for name, text in files().items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
