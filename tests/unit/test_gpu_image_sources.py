"""What is copied into NVIDIA's images runs on their Python, which is older than the project's."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
IMAGES_PYTHON = (3, 10)  # of the image of TensorRT-LLM 0.5.0
FOLDERS = ("src/labsched", "src/labserve", "model_repos")
SOURCES = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_it_parses_there(path: Path) -> None:
    ast.parse(path.read_text(encoding="utf-8"), feature_version=IMAGES_PYTHON)
