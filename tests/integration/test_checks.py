"""Checks one after the other on a real server: each starts clean, and what it says is true."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
from machinery import copy_of_the_checkout
from waiting import eventually

from labctl.learn import desk, judge, server
from labctl.learn.attempts import find_attempt
from labctl.learn.exercise import Exercise, find_exercise, find_exercises
from labctl.learn.outcome import TooBusy
from labctl.listener import Silent
from labctl.stack.session import Session

# The exercise server is meant to outlive the check that started it.
pytestmark = [
    pytest.mark.xdist_group("checks"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
Change = Callable[[str], str]


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    root = copy_of_the_checkout(tmp_path_factory.mktemp("checks") / "checkout")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LABS_ROOT", str(root))
        session = Session.open(Silent())
        try:
            yield session
        finally:
            server.stop_exercise_server(session)


def exercise_of(session: Session, id: str) -> Exercise:
    return find_exercise(find_exercises(session.workspace, session.catalog), id)


def check(session: Session, id: str, answer: str = "solution", change: Change = lambda text: text) -> judge.Outcome:
    """What the judge says of that answer, with a change of its first file; once more where the machine was too busy."""
    exercise = exercise_of(session, id)
    desk.lay_out_exercise(exercise, session.workspace)
    for number, (name, text) in enumerate(find_attempt(exercise, answer).files.items()):
        (session.workspace.root / exercise.place(name)).write_text(change(text) if number == 0 else text)

    def judged() -> judge.Outcome | None:
        with suppress(TooBusy):
            return judge.check_exercise(session, exercise, "local", [11])
        return None

    outcome: judge.Outcome = eventually(judged)
    return outcome


def replaced(before: str, after: str) -> Change:
    """A change of one place of a text."""

    def change(text: str) -> str:
        assert text.count(before) == 1, f"{text.count(before)} times: {before}"
        return text.replace(before, after)

    return change


def test_a_right_client_passes_at_once_after_one_that_timed_out(session: Session) -> None:
    """The requests that the first client left in Triton's queue are not judged as the second one's."""
    for _ in range(2):
        wrong = check(session, "01a", "wrong/no_end")
        assert wrong.sentence == exercise_of(session, "01a").manifest.wrong["no_end"]
        right = check(session, "01a")
        assert right.passed, right.sentence


@pytest.mark.parametrize("printed", ["texts[:5]", "7", "[1] * 6", "None"])
def test_a_client_that_prints_something_else_is_told_what_to_print(session: Session, printed: str) -> None:
    said = check(session, "01a", change=replaced("json.dumps(texts)", f"json.dumps({printed})"))
    assert "must print the texts" in said.sentence


def test_fault_25_a_loop_in_initialize_is_named_and_the_next_check_finds_a_clean_server(session: Session) -> None:
    """Triton cannot end such a load, and would load nothing else after it."""
    guilty = replaced(
        "    def initialize(self, args):\n", "    def initialize(self, args):\n        while True:\n            pass\n"
    )
    assert check(session, "02b").passed
    said = check(session, "02b", change=guilty).sentence
    assert "exercises/02b/model.py:" in said and "is there a loop without an end?" in said
    after = check(session, "02b")
    assert after.passed, after.sentence


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("        self.one_step(batch)\n", "        {}['b']\n        self.one_step(batch)\n"),
        ("        self.one_step(batch)\n", "        self.one_step(batch)\n        batch.nonsense()\n"),
    ],
)
def test_fault_25_an_exception_is_the_headline_before_and_after_the_answers(
    session: Session, before: str, after: str
) -> None:
    outcome = check(session, "02b", change=replaced(before, after))
    text = (exercise_of(session, "02b").yours(session.workspace) / "model.py").read_text()
    line = next(n for n, row in enumerate(text.splitlines(), 1) if "nonsense" in row or "{}['b']" in row)
    assert outcome.sentence.startswith(f"exercises/02b/model.py, line {line}: ")
    assert "KeyError: 'b'" in outcome.sentence or "AttributeError" in outcome.sentence
    assert check(session, "02b").passed, "what it left behind fails the next one"


def test_fault_25_an_allocation_without_an_end_is_stopped_and_the_next_check_passes(session: Session) -> None:
    # It is kept, however seldom a busy machine looks.
    guilty = "        self.kept = [b'x' * (64 << 20) for _ in range(80)]  # 5 GB, should nothing stop it\n"
    said = check(
        session, "02b", change=replaced("        self.one_step(batch)\n", f"{guilty}        self.one_step(batch)\n")
    )
    assert "took more than 3,072 MiB of memory and was stopped" in said.sentence
    after = check(session, "02b")
    assert after.passed, after.sentence


def test_a_step_that_sleeps_is_slow_and_misses_no_reschedule(session: Session) -> None:
    line = "        self.running.step(batch)\n"
    outcome = check(session, "02a", change=replaced(line, f"        __import__('time').sleep(0.3)\n{line}"))
    assert "goes back to Triton" not in outcome.sentence and "given back" not in outcome.sentence
    assert outcome.passed or "slow" in outcome.sentence


def test_an_error_of_a_scheduler_begins_with_its_file_and_line(session: Session) -> None:
    outcome = check(session, "06b", change=replaced("+= len(request.prompt)", "+= request.prompt"))
    assert outcome.sentence.startswith("my/scheduler.py, line ") and "TypeError" in outcome.sentence


def test_an_order_that_names_only_the_next_request_passes(session: Session) -> None:
    outcome = check(
        session,
        "06b",
        change=replaced(
            "return sorted(waiting, key=lambda request: self.served[request.tenant])",
            "return [min(waiting, key=lambda request: self.served[request.tenant])]",
        ),
    )
    assert outcome.passed, outcome.sentence
