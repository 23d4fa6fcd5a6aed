"""Each release of TensorRT-LLM is planned, built and rendered as its golden files say (docs/develop/testing.md)."""

from __future__ import annotations

import golden_releases
import pytest

from labbuild.releases import all_releases
from labctl.architecture import X86

CASES = [(release, case) for release, cases in golden_releases.CASES.items() for case in cases]


@pytest.fixture(autouse=True)
def x86(monkeypatch: pytest.MonkeyPatch) -> None:
    """The keys of engines are those of x86_64."""
    monkeypatch.setattr("labctl.artifacts.engines.server_architecture", lambda: X86)


@pytest.mark.parametrize(("release", "case"), CASES)
def test_a_release_is_served_as_its_golden_file_says(release: str, case: str) -> None:
    assert golden_releases.text(release, case) == golden_releases.path(release, case).read_text(encoding="utf-8")


def test_every_release_has_golden_files_and_no_file_is_left_of_a_case_that_is_gone() -> None:
    assert golden_releases.CASES.keys() == all_releases().keys()
    kept = {path for release in all_releases() for path in (golden_releases.GOLDEN / release).glob("*.txt")}
    assert {golden_releases.path(*case) for case in CASES} == kept
