"""The course: its file names what there is, each of its exercises is short, and the pages follow its order."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest
from checkout import ROOT
from exercise_cases import EXERCISES
from lab_errors import lab_error

from labctl.catalog import END, FILE, core_of, load_catalog, told_after
from labctl.lab import Lab
from labctl.workspace import Workspace

CATALOG = load_catalog(Workspace(ROOT, ROOT / ".cache"))
PLACES = [lab.number for lab in CATALOG.labs]


def test_the_course_names_every_lab_and_exercises_that_there_are() -> None:
    assert [part.lab for part in CATALOG.course] == PLACES
    assert core_of(CATALOG.course) == [exercise.id for exercise in EXERCISES if exercise.core]
    assert all(id.startswith(part.lab) for part in CATALOG.course for id in part.core)


def test_the_course_is_an_afternoon_of_short_exercises() -> None:
    minutes = [exercise.manifest.minutes for exercise in EXERCISES if exercise.core]
    assert min(minutes) >= 5 and max(minutes) <= 15
    assert 13 <= len(minutes) <= 17 and sum(minutes) <= 4 * 60


@pytest.mark.parametrize("page", ["README.md", "docs/learn/labs.md"])
def test_pages_list_the_labs_in_its_order(page: str) -> None:
    rows = re.findall(r"^\| \[(\d\d)", (ROOT / page).read_text(encoding="utf-8"), re.M)
    assert rows == PLACES


def test_the_map_says_which_exercises_are_the_course_and_how_long_each_takes() -> None:
    text = (ROOT / "docs/learn/labs.md").read_text(encoding="utf-8")
    for exercise in EXERCISES:
        name = f"{exercise.id} {exercise.manifest.minutes}"
        assert (f"**{name}**" in text) == exercise.core and name in text, name


@pytest.mark.parametrize("lesson", sorted(ROOT.glob("labs/*/README.md")), ids=lambda path: path.parent.name)
def test_a_lesson_names_each_of_its_exercises(lesson: Path) -> None:
    named = re.findall(r"labctl exercise start (\w+)", lesson.read_text(encoding="utf-8"))
    assert sorted(named) == sorted(e.id for e in EXERCISES if e.lab.folder == lesson.parent.name)


@pytest.mark.parametrize(("lab", "following"), [*pairwise(CATALOG.labs)], ids=lambda lab: lab.number)
def test_a_lesson_leads_to_the_next_lab_of_the_course(lab: Lab, following: Lab) -> None:
    lesson = (ROOT / "labs" / lab.folder / "README.md").read_text(encoding="utf-8")
    assert f"Next in the course: [lab {following.number}](../{following.folder}/README.md)" in lesson


def test_a_question_is_answered_with_the_last_exercise_of_its_lab() -> None:
    first, *others = CATALOG.course[0].core
    assert told_after(CATALOG.course, first, {first}) == []
    (told,) = told_after(CATALOG.course, first, {first, *others})
    assert CATALOG.course[0].answers in told
    assert told_after(CATALOG.course, "99z", {"99z"}) == []


def test_after_the_last_exercise_the_course_says_where_it_ends() -> None:
    core = core_of(CATALOG.course)
    assert told_after(CATALOG.course, core[0], {*core})[-1] == END
    assert (ROOT / END.split()[-1]).is_file()


def test_a_course_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "labs").mkdir()
    (tmp_path / "labs" / FILE).write_text("- lab: 2\n  colour: red\n")
    with lab_error("lab-broken", f"labs/{FILE}"):
        _ = load_catalog(Workspace(tmp_path, tmp_path / "cache")).labs
