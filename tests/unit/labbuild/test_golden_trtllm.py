"""TensorRT-LLM is planned, built and rendered as its golden files say (docs/develop/testing.md)."""

from __future__ import annotations

import golden_trtllm
import pytest

from labctl.architecture import X86


@pytest.fixture(autouse=True)
def x86(monkeypatch: pytest.MonkeyPatch) -> None:
    """The keys of engines are those of x86_64."""
    monkeypatch.setattr("labctl.artifacts.engines.server_architecture", lambda: X86)


@pytest.mark.parametrize("case", golden_trtllm.CASES)
def test_a_stack_is_served_as_its_golden_file_says(case: str) -> None:
    assert golden_trtllm.text(case) == golden_trtllm.path(case).read_text(encoding="utf-8")


def test_no_file_is_left_of_a_case_that_is_gone() -> None:
    assert {golden_trtllm.path(case) for case in golden_trtllm.CASES} == {*golden_trtllm.GOLDEN.glob("*.txt")}
