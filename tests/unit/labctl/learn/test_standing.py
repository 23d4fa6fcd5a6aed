"""The class view reads what learners can write, and shows of it only numbers and what their teachers wrote."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from exercise_cases import EXERCISES
from hypothesis import example, given, settings
from hypothesis import strategies as st

from labctl.learn.class_page import page
from labctl.learn.progress import PASSED
from labctl.learn.room import Room
from labctl.learn.standing import BEGUN, MOST_BYTES, ClassStanding, commonest, read_beneath, standings

NOW = 1_000_000.0
SOME = [each for each in EXERCISES if each.id in ("02a", "02b")]


@pytest.fixture
def room(tmp_path: Path) -> Room:
    made = Room(tmp_path / "hub")
    made.prepare()
    made.open_home("ada")
    return made


def write(room: Room, name: str, progress: Any, **sentences: Any) -> None:
    state = room.open_home(name) / "labs" / ".labs"
    (state / "checks").mkdir(parents=True, exist_ok=True)
    (state / "exercises.json").write_text(json.dumps(progress))
    for id, sentence in sentences.items():
        (state / "checks" / f"{id[1:]}.json").write_text(json.dumps({"sentence": sentence}))


def of(room: Room) -> dict[str, ClassStanding]:
    return {each.name: each for each in standings(room, SOME, NOW)}


def test_who_is_where_since_when_and_the_commonest_foreseen_mistake(room: Room) -> None:
    mistakes = dict(SOME[0].manifest.wrong)
    begun = {"state": "started", "started": NOW - 600, "checks": 3, "hints": 1}
    write(room, "ada", {"02a": begun}, _02a=mistakes["no_reschedule"])
    write(room, "bo", {"02a": begun}, _02a=mistakes["no_reschedule"])
    write(room, "cy", {"02a": begun}, _02a=SOME[0].manifest.says)
    write(
        room, "dee", {"02a": {**begun, "state": PASSED}, "02b": {**begun, "started": NOW - 60}}, _02b="something else"
    )
    found = of(room)
    assert [found[name].current for name in ("ada", "dee")] == ["02a", "02b"]
    assert [found[name].passed for name in ("ada", "dee")] == ["0 of 2", "1 of 2"], "of those that count"
    assert [found[name].mistakes for name in ("cy", "dee")] == [{"02a": BEGUN}, {}]
    assert commonest([each.mistakes["02a"] for each in found.values() if each.mistakes]) == "no reschedule (2)"
    shown = page(list(found.values()), SOME, NOW)
    assert (
        "<td>ada</td><td>02a  One step at a time</td><td>10 min</td><td>3</td><td>1</td><td>no reschedule</td>" in shown
    )
    assert (
        "<td>02a</td><td>One step at a time</td><td>3</td><td>1 of 4</td><td>12</td><td>no reschedule (2)</td>" in shown
    )


def test_who_has_passed_the_exercise_is_not_counted_as_at_it(room: Room) -> None:
    write(room, "ada", {"02a": {"state": PASSED, "started": NOW - 600, "checks": 1}})
    write(room, "bo", {"02a": {"state": "started", "started": NOW - 600, "checks": 2}})
    assert "<td>02a</td><td>One step at a time</td><td>1</td><td>1 of 2</td>" in page([*of(room).values()], SOME, NOW)


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)
fields = st.dictionaries(st.sampled_from(["state", "started", "checks", "hints"]), anything)


@settings(max_examples=30)
@given(st.dictionaries(st.sampled_from(["02a", "02b", "<b>", "99z"]), fields | anything), anything)
@example({"02a": {"state": "<script>", "started": 1}, "<script>": {}}, "<script>alert()</script>")
def test_whatever_a_learner_writes_the_page_is_made_and_none_of_it_is_on_it(
    room: Room, said: Any, sentence: Any
) -> None:
    write(room, "ada", said, _02a=sentence, _02b=sentence)
    (learner,) = of(room).values()
    assert set(learner.entries) <= {"02a", "02b"}
    assert all(0 <= each.started <= NOW and 0 <= each.checks <= 9999 for each in learner.entries.values())
    shown = page([learner], SOME, NOW)
    plain = page([ClassStanding("ada", learner.entries, {}, learner.course)], SOME, NOW)
    assert shown == plain or learner.mistakes
    assert not any(word in shown for word in ("<b>", "99z", "<script>"))


def test_no_link_is_followed_on_the_way_to_a_file(room: Room, tmp_path: Path) -> None:
    """Of somebody else's work, of JupyterHub's own files, of anything outside."""
    write(room, "bo", {"02a": {"state": PASSED}})
    labs, others = (room.open_home(name) / "labs" for name in ("ada", "bo"))
    for link, target in ((labs, others), (labs / ".labs", others / ".labs")):
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(target)
        assert not of(room)["ada"].entries
        link.unlink()
    (labs / ".labs").mkdir(parents=True)
    (labs / ".labs" / "exercises.json").symlink_to(others / ".labs" / "exercises.json")
    assert not of(room)["ada"].entries and of(room)["bo"].entries


def test_a_pipe_a_folder_and_a_file_without_end_are_no_progress(room: Room) -> None:
    state = room.open_home("ada") / "labs" / ".labs"
    state.mkdir(parents=True)
    path = state / "exercises.json"
    os.mkfifo(path)
    assert not of(room)["ada"].entries
    path.unlink()
    path.mkdir()
    assert not of(room)["ada"].entries
    path.rmdir()
    path.write_text(json.dumps({"02a": {"state": PASSED}}) + " " * MOST_BYTES)
    assert not of(room)["ada"].entries
    path.write_text("[" * 100_000)
    assert not of(room)["ada"].entries and not read_beneath(room.path, ("work", "nobody", "x"))
