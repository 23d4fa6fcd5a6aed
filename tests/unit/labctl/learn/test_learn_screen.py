"""The screen of `labctl learn`: it fits any terminal, and what was found is always on it."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from dataclasses import replace
from pathlib import Path

import pytest
from exercise_cases import EXERCISES, begin_in
from machinery import of_its_own
from waiting import DEADLINE_S

from labctl.cli import learn_screen, learn_view
from labctl.cli.learn_screen import LearnScreen
from labctl.learn import judge
from labctl.learn.exercise import Exercise, find_exercise
from labctl.learn.outcome import Check
from labctl.learn.progress import Progress
from labctl.listener import Silent
from labctl.stack.session import Session

TASK = "A paragraph that is\nhard-wrapped in its file.\n\n- one\n- two\n\n" + "Long. " * 200
FOUND = ["ok  steps: expected 3, measured 3", "NO  rows: expected 2, measured 1", "", "not yet: " + "why " * 30]


def view(below: list[str], task: str = TASK, page: int = 0) -> learn_view.View:
    about = ("02a  One step at a time", "started", "1 of 6 passed", task, "Edit a, and save.", "exercises/02a/task.md")
    return learn_view.View(*about, below, page)


def lines(shown: learn_view.View, width: int, height: int) -> list[str]:
    return [line.plain.rstrip() for line in learn_view.view_lines(shown, width, height)]


@pytest.mark.parametrize("size", [(80, 24), (132, 50), (40, 12)])
def test_every_line_fits_and_what_was_found_is_there(size: tuple[int, int]) -> None:
    width, height = size
    plain = lines(view(FOUND), width, height)
    assert len(plain) == height
    assert max(map(len, plain)) < width
    assert any(line.startswith("NO  rows: expected 2") for line in plain)
    assert plain[0].startswith("02a") and plain[-1].startswith("c check")


def test_a_paragraph_takes_the_width_of_the_screen_and_an_item_of_a_list_is_wrapped_below_its_own_words() -> None:
    task = "Hard-wrapped\nin a file.\n\n- an item that goes on for longer than\n  the line is\n- `code`:\n  and words"
    shown = lines(view([], task), 30, 24)
    assert shown[2:4] == ["Hard-wrapped in a file.", ""]
    assert shown[4:7] == [" • an item that goes on for", "   longer than the line is", " • code: and words"]


def test_a_task_without_room_says_where_it_can_be_read() -> None:
    shown = lines(view(FOUND), 80, 24)
    (cut,) = [number for number, line in enumerate(shown) if "exercises/02a/task.md" in line]
    assert shown[cut + 1] == "Edit a, and save.", "which file it is about"


@pytest.mark.parametrize("size", [(80, 24), (60, 30)])
def test_all_of_a_long_task_is_seen_by_scrolling(size: tuple[int, int]) -> None:
    task = "\n\n".join(f"word{n}" for n in range(40))
    hidden = learn_view.lines_hidden(view(FOUND, task), *size)
    seen = {line for top in range(hidden + 5) for line in lines(replace(view(FOUND, task), top=top), *size)}
    assert {f"word{n}" for n in range(40)} <= seen
    assert learn_view.lines_hidden(view([], "short"), *size) == 0


@pytest.mark.parametrize("exercise", [each for each in EXERCISES if each.core], ids=lambda each: each.id)
def test_a_task_of_the_course_fits_on_a_usual_terminal(
    exercise: Exercise, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin_in(tmp_path, monkeypatch)
    session = Session.open(Silent())
    screen = LearnScreen(session, EXERCISES, Progress(session.workspace), "local")
    screen._begin(exercise)
    assert learn_view.lines_hidden(screen._view(), 80, 24) == 0


@pytest.mark.parametrize("size", [(80, 24), (40, 12)])
def test_the_list_has_every_exercise_and_begins_the_chosen_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: tuple[int, int]
) -> None:
    begin_in(tmp_path, monkeypatch)
    session = Session.open(Silent())
    screen = LearnScreen(session, EXERCISES, Progress(session.workspace), "local")
    screen._begin(EXERCISES[0])
    screen._act("l")
    for exercise in EXERCISES:
        shown = lines(screen._view(), *size)
        assert [line for line in shown if line.startswith(learn_view.HERE) and exercise.id in line], shown
        screen._act("down")
    screen._act("up")
    screen._act("\n")
    assert screen.exercise.id == EXERCISES[-2].id and screen.progress.current == EXERCISES[-2].id
    screen._act("l")
    screen._act("l")
    assert lines(screen._view(), *size)[0].startswith(EXERCISES[-2].id)


def test_a_solution_has_the_screen_for_itself() -> None:
    code = [f"line {n}" for n in range(19)]
    assert lines(view(code, task=""), 80, 24)[2:21] == code


def test_a_long_line_of_code_keeps_its_indent_and_goes_on_further_in() -> None:
    name = "pb_utils." + "A" * 60
    shown = lines(view([f"        request.call({name})", f"    x = [{name}, {name}]"], task=""), 80, 24)
    assert shown[2].startswith("        request.call(pb_utils.AAA") and shown[3].startswith("            AAA")
    assert shown[4].startswith("    x = [pb_utils.") and shown[5].startswith("        pb_utils.")


def test_what_does_not_fit_comes_page_by_page() -> None:
    code = [f"    line {n}" for n in range(60)]
    seen: set[str] = set()
    for page in range(12):
        shown = lines(view(code, page=page), 80, 24)
        assert learn_view.MORE in shown[-1]
        seen |= {line for line in shown if line in code}
    assert seen == set(code)


@pytest.mark.parametrize(
    ("typed", "heard"), [(b"h", "h"), (b"N", "n"), (b"\033[C", ""), (b"\033[A", "up"), (b"\033[H", ""), (b"rq", "")]
)
def test_an_arrow_key_is_not_taken_for_its_letters(monkeypatch: pytest.MonkeyPatch, typed: bytes, heard: str) -> None:
    read, write = os.pipe()
    with os.fdopen(read) as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        os.write(write, typed)
        assert learn_screen.read_key(1.0) == heard
        os.close(write)


@pytest.mark.parametrize("size", [(80, 24), (60, 30)])
def test_a_hint_leaves_what_was_found_on_the_screen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: tuple[int, int]
) -> None:
    begin_in(tmp_path, monkeypatch)
    session = Session.open(Silent())
    exercise = find_exercise(EXERCISES, "02b")
    screen = LearnScreen(session, [exercise], Progress(session.workspace), "local")
    screen._begin(exercise)
    found = judge.Outcome("02b", False, [1], [Check("slots", "0", "8", False, "a slot stays.")], "a slot stays.")
    screen._show(screen._rows_of(found))
    for _ in exercise.manifest.hints:
        screen._act("h")
        shown = lines(screen._view(), *size)
        assert any(line.startswith("hint ") for line in shown) and "not yet: a slot stays." in shown
        assert any(line.startswith("NO  slots: expected 0, measured 8") for line in shown)


def test_after_the_last_exercise_of_a_lab_the_screen_says_what_one_can_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin_in(tmp_path, monkeypatch)
    session = Session.open(Silent())
    progress, (part, *_) = Progress(session.workspace), session.catalog.course
    screen = LearnScreen(session, EXERCISES, progress, "local")
    for id in part.core:
        screen._begin(find_exercise(EXERCISES, id))
        progress.record_check(id, passed=True)
        shown = screen._rows_of(judge.Outcome(id, True, [1], [], "all holds"))
        assert any(part.answers in line for line in shown) == (id == part.core[-1])
    assert "3 of 15 passed" in lines(screen._view(), 80, 24)[0]


@pytest.mark.parametrize("width", range(60, 100, 3))
def test_no_word_is_broken_at_any_width(width: int) -> None:
    """What is shown of every task, with every hint, is made of the words that were written."""
    for exercise in EXERCISES:
        task = (exercise.folder / "task.md").read_text()
        below = [*exercise.manifest.hints, exercise.manifest.says, *exercise.manifest.wrong.values()]
        shown = lines(view(below, task), width, 200)
        assert max(map(len, shown)) < width
        marked = re.sub(r"[`*]|^ *-(?= )|(?<=^\d)\.", "", task, flags=re.MULTILINE)
        longest = [word for word in " ".join([marked, *below]).split() if len(word) < width - 8]
        assert set(longest) <= set(" ".join(shown).split()), exercise.id


@pytest.mark.parametrize("more", [{}, {"NO_COLOR": "1"}])
def test_a_session_in_a_real_terminal(tmp_path: Path, more: dict[str, str]) -> None:
    """The task is there, h shows a hint, a solution is not given away, and q leaves the terminal as it was."""
    learner = of_its_own(tmp_path).root
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    before = termios.tcgetattr(theirs)
    env = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "COLUMNS", "LINES")}
    env |= {"LABS_ROOT": str(learner), "TERM": "xterm", **more}
    argv = [sys.executable, "-m", "labctl", "learn", "iterative"]
    with subprocess.Popen(argv, stdin=theirs, stdout=theirs, stderr=theirs, env=env, cwd=learner) as process:
        seen = b""

        def until(text: bytes) -> None:
            nonlocal seen
            deadline = time.monotonic() + DEADLINE_S
            while text not in seen:
                assert time.monotonic() < deadline, seen.decode(errors="replace")[-2000:]
                if select.select([ours], [], [], 0.2)[0]:
                    seen += os.read(ours, 65536)

        until(b"c check")
        assert b"02a  One step at a time" in seen and b"exercises/02a/model.py" in seen
        os.write(ours, b"h")
        until(b"hint 1 of")
        assert (b"\033[36m" in seen) == (not more), "colours"
        os.write(ours, b"s")
        until(b"after it has passed")
        assert b"RELEASE_RESCHEDULE)" not in seen
        os.write(ours, b"q")
        until(b"\033[?1049l")
        assert process.wait(DEADLINE_S) == 0
        while select.select([ours], [], [], 0.2)[0]:
            seen += os.read(ours, 65536)
        assert b"stays for half an hour" not in seen, "no server is up"
    assert termios.tcgetattr(theirs) == before
    os.close(ours)
    os.close(theirs)
