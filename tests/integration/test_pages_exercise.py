"""The example of docs/develop/writing-an-exercise.md on a real server, as its author verifies it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import page_files
from machinery import copy_of_the_checkout, labctl
from waiting import eventually


def test_the_pages_exercise_is_verified_as_it_stands_there(tmp_path: Path, cache: Path) -> None:
    root = copy_of_the_checkout(tmp_path / "checkout")
    page_files.put_into(root, "example-exercise")

    def judged() -> Any:
        done = labctl("exercise", "verify", "02x", "--runtime", "local", root=root, check=False)
        return None if "too busy to judge" in done.stderr else done

    done = eventually(judged)
    assert done.returncode == 0 and "as foreseen" in done.stdout and "NO" not in done.stdout, done
    assert not (root / "exercises").exists(), "it works on a copy"
