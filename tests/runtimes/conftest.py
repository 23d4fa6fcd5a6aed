"""One source for both runtimes: every test here that takes ``where`` is run on each of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from machinery import copy_of_the_checkout, names_left, processes_about, taken_down, with_faults_lab

IN_CONTAINERS = ("test_faults.py", "test_labs.py")  # each day; the other files' tests on compose run at night


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == Path(__file__).parent and item.path.name not in IN_CONTAINERS:
            callspec = getattr(item, "callspec", None)
            if callspec and "compose" in callspec.params.values():
                item.add_marker(pytest.mark.night)


@pytest.fixture(params=["local", "compose"])
def where(request: pytest.FixtureRequest) -> str:
    """The runtime; compose needs an engine and the images."""
    if request.param == "compose":
        request.getfixturevalue("images")
    return str(request.param)


@pytest.fixture
def own(tmp_path: Path, snapshot: Path, where: str) -> Iterator[Path]:
    """A checkout for one test with the lab of faults in it; when it ends, nothing of it may be left."""
    root = with_faults_lab(copy_of_the_checkout(tmp_path / "own", snapshot))
    try:
        yield root
    finally:
        if names_left(root):
            taken_down(root)
        assert names_left(root) == set()
        assert processes_about(root) == []
