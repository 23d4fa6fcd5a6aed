"""What each LabError says, as a person has read it: tests/golden/messages.txt."""

from __future__ import annotations

import golden_messages


def test_each_code_says_what_was_read() -> None:
    assert golden_messages.text() == golden_messages.GOLDEN.read_text(encoding="utf-8")
