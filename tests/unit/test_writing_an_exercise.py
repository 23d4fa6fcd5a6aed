"""docs/develop/writing-an-exercise.md: it explains every key of a manifest, and its example is whole."""

from __future__ import annotations

import page_files
from machinery import ROOT

from labctl.learn.exercise import Manifest

PAGE = (ROOT / "docs" / "develop" / "writing-an-exercise.md").read_text(encoding="utf-8")


def test_the_page_names_every_key_that_a_manifest_may_have() -> None:
    assert [key for key in Manifest.model_fields if f"`{key}`" not in PAGE] == []


def test_the_pages_exercise_is_whole() -> None:
    names = {name.partition("02x-count-the-rows/")[2] for name in page_files.files("example-exercise")}
    assert {"exercise.yaml", "task.md", "check.py", "starter/predict.py", "solution/predict.py"} <= names
