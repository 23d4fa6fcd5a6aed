"""A learner's function in a process of its own: its errors, its time and its result."""

from __future__ import annotations

from pathlib import Path

import pytest
from lab_errors import lab_error

from labctl.learn import sandbox


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("def f(x):\n    return x / 0\n", "answer.py, line 2: ZeroDivisionError"),
        ("def f(x):\n    return bytes(2 << 30)\n", "MemoryError"),
        ("def g(x): pass\n", "has no attribute 'f'"),
        ("def f(x):\n    return {1, 2}\n", "not JSON serializable"),
        ("def f(x:\n", "SyntaxError"),
    ],
)
def test_a_function_that_goes_wrong_is_told_in_its_own_lines(tmp_path: Path, source: str, said: str) -> None:
    (tmp_path / "answer.py").write_text(source)
    with lab_error("answer-failed") as caught:
        sandbox.call_in_sandbox(tmp_path / "answer.py", "f", [1], seconds=20)
    assert said in f"{caught.value}"
    assert "Traceback" not in f"{caught.value}"


def test_a_function_that_does_not_return_is_ended(tmp_path: Path) -> None:
    (tmp_path / "answer.py").write_text("def f(x):\n    while True: pass\n")
    with lab_error("answer-unended", "0.5 s"):
        sandbox.call_in_sandbox(tmp_path / "answer.py", "f", [1], seconds=0.5)


def test_a_function_may_print_and_its_result_comes_back(tmp_path: Path) -> None:
    (tmp_path / "answer.py").write_text("def f(a, b):\n    print('thinking')\n    return [a + b, {'n': b}]\n")
    assert sandbox.call_in_sandbox(tmp_path / "answer.py", "f", [1, 2], seconds=5) == [3, {"n": 2}]
