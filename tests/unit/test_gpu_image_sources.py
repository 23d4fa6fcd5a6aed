"""What is copied into NVIDIA's images runs on their Python, which is older than the project's."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
IMAGES_PYTHON = (3, 10)  # of the image of TensorRT-LLM 0.5.0


def test_all_that_the_server_imports_parses_there() -> None:
    for folder in ("src/labsched", "src/labserve", "model_repos"):
        sources = [*(ROOT / folder).rglob("*.py")]
        assert sources, folder
        for path in sources:
            ast.parse(path.read_text(encoding="utf-8"), str(path), feature_version=IMAGES_PYTHON)
