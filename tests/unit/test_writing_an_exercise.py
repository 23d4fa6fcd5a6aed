"""docs/develop/writing-an-exercise.md: it explains every key of a manifest, and its example is whole."""

from __future__ import annotations

import re
from inspect import getmembers, isfunction

import page_files
from machinery import ROOT

from labctl.learn.exercise import Manifest
from labctl.learn.trial import Trial

PAGE = (ROOT / "docs" / "develop" / "writing-an-exercise.md").read_text(encoding="utf-8")


def test_the_page_names_every_key_that_a_manifest_may_have() -> None:
    assert [key for key in Manifest.model_fields if f"`{key}`" not in PAGE] == []


def test_the_page_names_every_method_of_a_trial_and_none_that_there_is_not() -> None:
    methods = PAGE.partition("`trial` has these methods:\n\n")[2].partition("\n\n")[0]
    cells = re.findall(r"^- (.+?): ", methods, re.M)
    named = {name for cell in cells for name in re.findall(r"`(\w+)", cell)}
    assert named == {name for name, _ in getmembers(Trial, isfunction) if not name.startswith("_")}


def test_the_pages_exercise_is_whole() -> None:
    names = {name.partition("02x-count-the-rows/")[2] for name in page_files.files("example-exercise")}
    assert {"exercise.yaml", "task.md", "check.py", "starter/predict.py", "solution/predict.py"} <= names
