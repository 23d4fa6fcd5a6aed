"""The teacher's kit: keys that a second computation confirms, every exercise, and pages that lead somewhere."""

from __future__ import annotations

import heapq
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from browsing import browser  # noqa: F401
from checkout import ROOT
from hypothesis import given, settings
from hypothesis import strategies as st

from labctl import catalog
from labctl.learn.exercise import find_exercises
from labctl.workspace import Workspace

sys.path.insert(0, str(ROOT / "scripts"))
import quiz
import teach

HERE = Workspace(ROOT, ROOT / "unused")
EXERCISES = find_exercises(HERE, catalog.load_catalog(HERE))
seeds = given(st.integers(min_value=0, max_value=10**6))


def keys(question: quiz.Question) -> list[str]:
    return [*question.keys.values()]


def blocks(tokens: int) -> int:
    return -(-tokens // quiz.BLOCK)


@seeds
@settings(max_examples=30)
def test_the_keys_of_a_quiz_are_what_counting_by_hand_gives(seed: int) -> None:
    batching, memory, budget, prefixes = quiz.draw(seed)

    *first, e, f = batching.arrivals
    begins = max(max(each.answer for each in first) + 1, e.step)
    free = [each.answer + 1 for each in first]
    heapq.heapify(free)
    starts = []
    for late in (e, f):
        starts.append(max(heapq.heappop(free), late.step))
        heapq.heappush(free, starts[-1] + late.answer)
    static = begins + max(e.answer, f.answer) - 1
    assert keys(batching) == [str(n) for n in (static, max(free) - 1, begins, starts[1])]

    ends: list[tuple[int, int]] = []  # of each request that joined: its last step, and the blocks promised to it
    start = 1
    for each in memory.arrivals:
        promise = blocks(len(each.prompt) + each.answer)
        while sum(held for last, held in ends if last >= start) + promise > quiz.BLOCKS:
            start += 1
        ends.append((start + each.answer - 1, promise))
    step = next(n for n in range(1, 20) if needed(memory, n) > quiz.BLOCKS)
    newest = [each.name for each in memory.arrivals if step <= each.answer][-1]
    assert keys(memory) == [str(start), newest, str(step)]

    a, long = budget.arrivals
    tokens, room = len(long.prompt), limit_of(budget) - 1
    pieces = -(-tokens // room)
    assert a.answer > pieces + long.step - 1, "A decodes beside every piece"
    assert keys(budget) == [str(pieces), str(tokens - (pieces - 1) * room)]

    together = zip(*(each.prompt for each in prefixes.arrivals), strict=False)
    shared = next(at for at, tokens in enumerate(together) if len({*tokens}) > 1)
    assert keys(prefixes) == [str(shared // quiz.BLOCK * quiz.BLOCK)] * 2


def needed(question: quiz.Question, step: int) -> int:
    """Blocks for the tokens of all requests that are not done, and the next one of each, if none were preempted."""
    return sum(blocks(len(each.prompt) + step) for each in question.arrivals if step <= each.answer)


def limit_of(question: quiz.Question) -> int:
    found = re.search(r"computes more than (\d+) tokens", question.text)
    assert found
    return int(found[1])


def test_the_answer_sheet_has_every_exercise_its_minutes_and_each_foreseen_mistake() -> None:
    parts = dict(re.findall(r"^## (\w+): (.*?)(?=^## |\Z)", teach.answers(), re.M | re.S))
    assert [*parts] == [exercise.id for exercise in EXERCISES]
    for exercise in EXERCISES:
        told, manifest = parts[exercise.id], exercise.manifest
        assert f"about {manifest.minutes} min" in told
        missing = [said for said in manifest.wrong.values() if teach.cell(said) not in told]
        assert missing == []
        for name in manifest.files:
            added = {line[1:] for line in teach.difference(exercise.folder, name).splitlines() if line[:1] == "+"}
            starter, solution = ((exercise.folder / part / name).read_text() for part in ("starter", "solution"))
            assert {*solution.splitlines()} - {*starter.splitlines()} <= added


@pytest.mark.parametrize("heading", teach.SCRIPTS.values())
def test_a_script_opens_slides_of_all_that_its_rows_name_and_lasts_as_long_as_it_says(heading: str) -> None:
    rows = teach.script(heading)
    told = re.search(rf"## {heading} \((\d) h (\d+) min\)", teach.INSTRUCTOR.read_text())
    assert told
    hours, minutes = told.groups()
    assert sum(row.minutes for row in rows) == 60 * int(hours) + int(minutes)
    titles = [slide.title for row in rows for slide in row.slides]
    for named in re.findall(r"\b\d\d[a-f]\b", " ".join(row.what for row in rows)):
        assert any(title.startswith(f"{named}: ") for title in titles)
    shown = [found[2] for row in rows for slide in row.slides for found in teach.PICTURE.finditer(slide.body)]
    assert [picture for picture in shown if not Path(picture).is_file()] == []


@pytest.mark.parametrize("heading", teach.SCRIPTS.values())
def test_a_slide_is_a_question_with_its_answer_a_whole_task_or_a_break(heading: str) -> None:
    tasks = {f"{exercise.id}: {exercise.manifest.title}": exercise for exercise in EXERCISES}
    for slide in [slide for row in teach.script(heading) for slide in row.slides]:
        if slide.title in tasks:
            task = (tasks[slide.title].folder / "task.md").read_text(encoding="utf-8")
            assert slide.body == teach.plain(task.strip())
        elif slide.kind != "break":
            assert slide.title.endswith("?")
            assert slide.body, "a heading alone is no slide"


def test_a_run_of_a_script_shows_every_part_of_the_slides() -> None:
    shown = {slide.title for heading in teach.SCRIPTS.values() for row in teach.script(heading) for slide in row.slides}
    assert {slide.title for slides in teach.parts().values() for slide in slides} <= shown


@pytest.mark.parametrize("heading", teach.SCRIPTS.values())
def test_a_script_follows_the_course(heading: str) -> None:
    rows = " ".join(row.what for row in teach.script(heading))
    shown = list(dict.fromkeys(re.findall(r"\blab (\d\d)\b", rows)))
    assert shown == sorted(shown, key=[lab.number for lab in catalog.load_catalog(HERE).labs].index)
    core = [exercise.id for exercise in EXERCISES if exercise.core]
    named = list(dict.fromkeys(re.findall(r"\b\d\d[a-f]\b", rows)))
    assert named == [id for id in core if id in named]


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The kit's pages."""
    if not (ROOT / ".venv" / "teach" / ".ready").exists():
        refuse = pytest.fail if os.environ.get("LABS_REQUIRE_SITE") else pytest.skip
        refuse("no packages for the teacher's kit: make teach")
    folder = tmp_path_factory.mktemp("kit")
    teach.make(folder, seed=3)
    return folder


def targets(page: Path) -> Sequence[str]:
    return re.findall(r'(?:href|src)="(?!https?:)([^"]+)"', page.read_text(encoding="utf-8"))


def test_every_link_and_picture_of_the_kit_is_there(kit: Path) -> None:
    pages = [*kit.glob("*.html")]
    ids = {page.name: re.findall(r' id="([^"]+)"', page.read_text(encoding="utf-8")) for page in pages}
    lost = []
    for page in pages:
        for target in targets(page):
            path, _, anchor = target.partition("#")
            printed = path.endswith(".pdf") and (kit / path).with_suffix(".html").exists()
            if not printed and not (kit / path).is_file():
                lost.append((page.name, target))
            if anchor and anchor.removeprefix("/") not in ids[path]:
                lost.append((page.name, target))
    assert lost == []


def test_no_slide_is_cut_off(kit: Path, browser: Any) -> None:  # noqa: F811
    page = browser.new_page(viewport={"width": 1280, "height": 720})
    for name in teach.SCRIPTS:
        page.goto((kit / f"{name}.html").as_uri())
        page.wait_for_function("Reveal.isReady()")
        low = """Reveal.getSlides().map((slide, at) => {
            Reveal.slide(at)
            const wide = [slide, ...slide.querySelectorAll('pre, code, p, table')].some(part => part.scrollWidth > 1280)
            return wide || slide.scrollHeight > Reveal.getConfig().height ? slide.id : ''
        }).filter(Boolean)"""
        assert page.evaluate(low) == []
    page.close()


def test_the_fourth_row_reads_every_letter_and_none_is_outside_its_picture(kit: Path, browser: Any) -> None:  # noqa: F811
    page = browser.new_page(viewport={"width": 1280, "height": 720})
    for name in teach.SCRIPTS:
        page.goto((kit / f"{name}.html").as_uri())
        page.wait_for_function("Reveal.isReady()")
        faults = """Reveal.getSlides().flatMap((slide, at) => {
            Reveal.slide(at)
            const letters = [...slide.querySelectorAll('h2, p, li, td, code, text')]
            const shown = letters.filter(part => !part.closest('aside'))
            const small = shown.filter(part => parseFloat(getComputedStyle(part).fontSize) < 24)
            const outside = [...slide.querySelectorAll('svg text')].filter(part => {
                const [box, picture] = [part.getBBox(), part.closest('svg').viewBox.baseVal]
                return box.x < 0 || box.x + box.width > picture.width || box.y + box.height > picture.height + 6
            })
            return [...small, ...outside].map(part => `${slide.id}: ${part.textContent}`)
        })"""
        assert page.evaluate(faults) == []
    page.close()


def test_every_slide_and_answer_is_a_page_of_a_pdf_and_the_handout_is_one(kit: Path, browser: Any) -> None:  # noqa: F811
    teach.print_pages(kit, browser)
    pages = {path.stem: len(re.findall(rb"/Type /Page\b", path.read_bytes())) for path in kit.glob("*.pdf")}
    assert {*pages, "index"} == {path.stem for path in kit.glob("*.html")}
    for name, heading in teach.SCRIPTS.items():
        slides = [slide for row in teach.script(heading) for slide in row.slides]
        assert pages[name] == sum(2 if slide.answer else 1 for slide in slides), "an answer is a page of its own"
    assert pages["handout"] == 1


@pytest.mark.parametrize("heading", teach.SCRIPTS.values())
def test_no_slide_ends_where_a_list_should_follow(heading: str) -> None:
    bodies = [slide.body for row in teach.script(heading) for slide in row.slides]
    assert not [body for body in bodies if body.rstrip().endswith(":")]
