"""*Guess* for a class: a question that can be answered from what is shown, and what a learner's guess changes."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labctl.learn.class_page import guess_page
from labctl.learn.guess import PREEMPTED, WAITS, Guessing, Question, draw_question

SEEDS = st.integers(0, 2**32)


def drawn(seed: int) -> Question:
    return draw_question(random.Random(seed))


@given(SEEDS)
@settings(max_examples=60, deadline=None)
def test_a_question_has_a_choice_and_its_answer_keeps_the_limits(seed: int) -> None:
    question = drawn(seed)
    line, alive = question.lines[-1], {one.name for one in question.requests if not question.over(one.name)}
    assert question.answer and question.answer < alive  # who has ended is not in it, and somebody is left out
    assert len(question.answer) <= question.field.slots
    assert sum(line["tokens"]) <= question.field.step_tokens and line["kv_blocks_used"] <= question.field.blocks
    assert {question.cell(name, len(question.lines) - 1).text for name in alive - question.answer} <= {WAITS, PREEMPTED}


@given(SEEDS)
@settings(max_examples=20, deadline=None)
def test_before_the_answer_the_page_is_the_same_whatever_the_answer(seed: int) -> None:
    question = drawn(seed)
    other = {**question.lines[-1], "ids": [], "joined": [], "evicted": [], "waiting": ["A"], "why": "other"}
    forged = Question(question.field, question.policy, question.requests, [*question.lines[:-1], other])
    pages = [guess_page(Guessing(asked), "ada", "") for asked in (question, forged)]
    assert pages[0] == pages[1] and "<form" in pages[0]


@pytest.fixture
def guessing() -> Guessing:
    guessing = Guessing()
    guessing.begin(drawn(1))
    return guessing


def test_the_first_guess_counts_and_names_of_no_request_are_left_out(guessing: Guessing) -> None:
    assert guessing.question is not None
    guessing.take("ada", [*guessing.question.answer, "<b>"])
    guessing.take("ada", [])
    guessing.take("bo", [])
    assert guessing.right() == ["ada"] and guessing.commonest_mistake() == (frozenset(), 1)


def test_nobody_guesses_after_the_answer_and_a_new_question_takes_guesses_again(guessing: Guessing) -> None:
    guessing.shown = True
    guessing.take("ada", ["A"])
    assert not guessing.guesses and "<form" not in guess_page(guessing, "ada", "")
    guessing.begin(drawn(2))
    guessing.take("ada", ["A"])
    assert [*guessing.guesses] == ["ada"]


def test_a_wall_shows_the_question_without_a_form(guessing: Guessing) -> None:
    assert "<form" not in guess_page(guessing, "", "")
