"""On a terminal of 60 columns and more, lines break between words; in a file or a pipe they are as they were."""

from __future__ import annotations

import io
import re
from collections.abc import Callable

import pytest

from labctl.cli import console
from labkit.errors import LabError
from labkit.tables import format_table, wrap_text

SENTENCE = (
    "a batch was larger than the model's slots: does execute look at who is finished before it takes the next ones, "
    "and is every config.pbtxt of the repository valid?"
)
WIDTHS = (60, 66, 72, 80, 100, 132)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(params=WIDTHS)
def width(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def printed(width: int, called: Callable[[], object]) -> list[str]:
    """The lines that reach a terminal of that width; none is wider than it."""
    screen = Terminal()
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("COLUMNS", str(width))
        patched.setattr("sys.stdout", screen)
        patched.setattr("sys.stderr", screen)
        called()
    drawn = [line.rpartition("\r\x1b[2K")[2] for line in screen.getvalue().split("\n")]
    found = [re.sub(r"\x1b\[\d+m", "", line) for line in drawn]
    assert max(map(len, found)) <= width
    return found


def words(lines: list[str]) -> list[str]:
    return [word for line in lines for word in line.split()]


def test_an_errors_sentences_break_between_words(width: int) -> None:
    error = LabError(SENTENCE, SENTENCE, f"labctl up iterative ({SENTENCE})", details=[SENTENCE], code="any")
    said = words(printed(width, lambda: console.show_error(error)))
    assert said[0] == "error:" and said.count("execute") == 4 and said.count("config.pbtxt") == 4


def test_a_steps_end_and_a_note_break_between_words(width: int) -> None:
    def work() -> None:
        listener = console.Console()
        listener.step("model repository")
        listener.done("5 models, every config.pbtxt valid and every other sentence whole")
        listener.note(SENTENCE)

    said = words(printed(width, work))
    assert "config.pbtxt" in said and "execute" in said


def test_a_row_of_a_table_breaks_between_words_within_its_column(width: int) -> None:
    rows = [("NO", "a name of what is measured", "at most 2 of the requests", "3, " * 12), ("ok", "short", "1", "1")]
    lines = printed(width, lambda: print(format_table(rows, ("", "what", "expected", "measured"))))
    assert "measured" in words(lines) and "requests" in words(lines)
    column = next(line for line in lines if line.lstrip().startswith("what")).index("expected")
    assert all(line[column - 2 : column].strip() == "" for line in lines if not line.startswith("-"))


def test_numbers_keep_their_columns(width: int) -> None:
    rows = [("a model with a name of many words in it", "1,234.56", "0.9")]
    lines = printed(width, lambda: print(format_table(rows, ("model", "requests/s", "p99 s"), right=(1, 2))))
    assert "1,234.56" in words(lines)


def test_an_indent_is_kept_and_a_word_is_never_broken() -> None:
    assert wrap_text("  one two three", 9) == "  one two\n    three"
    assert wrap_text("a-path/that-is/longer-than/it", 10) == "a-path/that-is/longer-than/it"
    assert wrap_text("one\n\ntwo", 10) == "one\n\ntwo"


def test_in_a_pipe_lines_stay_whole(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    console.show_error(LabError(SENTENCE, code="any"))
    console.say(SENTENCE)
    shown = capsys.readouterr()
    assert SENTENCE in shown.err and SENTENCE in shown.out
    assert len(format_table([("a", SENTENCE)], ("one", "two")).splitlines()) == 3
