"""The complete examples that a page of docs/develop shows: files, each below its path in a checkout."""

from __future__ import annotations

from pathlib import Path

from checkout import ROOT

EXAMPLES = ROOT / "docs" / "develop"


def files(example: str) -> dict[str, str]:
    """Each file's text, by its path in a checkout. ``example`` is a folder of docs/develop."""
    folder = EXAMPLES / example
    paths = [path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    return {str(path.relative_to(folder)): path.read_text(encoding="utf-8") for path in sorted(paths)}


def put_into(root: Path, example: str) -> None:
    """Add them to a checkout; nothing that is there is changed."""
    for name, text in files(example).items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
