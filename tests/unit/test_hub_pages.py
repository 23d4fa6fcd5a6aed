"""The hub's pages: who may ask for what, and what they show of what learners' code said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hub_room import ADDRESS, PASSED, room

from labctl.hub.app import MOST_BODY
from labctl.hub.codes import WRONG
from labctl.hub.guess import Question
from labctl.hub.room import LOST

FILE = {"model.py": "class TritonPythonModel: pass\n"}
LEARNERS = ("/task/02a", "/live/", "/live/events", "/guess")
CLASSES = ("/class/1/live/", "/class/1/live/events")


def test_a_learner_sees_the_judges_words_for_their_own_file(tmp_path: Path) -> None:
    with room(tmp_path) as here:
        first, second = here.browser(1), here.browser(2)
        assert first.post("/task/02a/check", data=FILE).headers["location"] == "/task/02a#verdict"
        here.judged(1)
        assert PASSED["sentence"] in first.get("/task/02a").text
        assert PASSED["sentence"] not in second.get("/task/02a").text


@pytest.mark.parametrize("path", [*LEARNERS, *CLASSES, "/state"])
def test_a_stranger_gets_nothing_but_the_door(tmp_path: Path, path: str) -> None:
    with room(tmp_path) as here:
        assert here.browser().get(path).status_code in (401, 403)


@pytest.mark.parametrize("path", CLASSES)
def test_a_learner_does_not_get_the_instructors_pages(tmp_path: Path, path: str) -> None:
    with room(tmp_path) as here:
        assert here.browser(1).get(path).status_code == 403
        assert here.browser(1).post("/class/guess/begin", data={}).status_code == 403


@pytest.mark.parametrize("path", ["/docs", "/task/99z", "/task/..%2f..%2fetc", "/templates/base.html"])
def test_an_address_that_is_not_on_the_list_is_refused(tmp_path: Path, path: str) -> None:
    with room(tmp_path) as here:
        assert here.browser(1).get(path).status_code in (404, 409)


@pytest.mark.parametrize("headers", [{"host": "evil.example"}, {"origin": "http://evil.example"}, {"origin": "null"}])
def test_a_call_under_another_name_or_from_another_page_is_refused(tmp_path: Path, headers: dict[str, str]) -> None:
    with room(tmp_path) as here:
        assert here.browser(1).post("/task/02a/check", data=FILE, headers=headers).status_code == 403
        assert here.hub.room.desks[1].files == {}


def test_the_room_answers_under_the_name_that_a_person_gave_it(tmp_path: Path) -> None:
    with room(tmp_path) as here:
        here.hub.forwarded = "labs.example"
        assert here.browser().get("/", headers={"host": "labs.example"}).status_code == 403  # from another page
        assert here.browser().get("/", headers={"host": "labs.example", "origin": "https://labs.example"}).is_success


def test_a_call_that_does_not_say_where_it_comes_from_is_refused(tmp_path: Path) -> None:
    with room(tmp_path) as here:
        browser = here.browser(1)
        del browser.headers["origin"]
        assert browser.post("/task/02a/check", data=FILE).status_code == 403


def test_a_file_that_is_too_large_is_refused(tmp_path: Path) -> None:
    with room(tmp_path) as here:
        assert here.browser(1).post("/task/02a/check", data={"model.py": "x" * MOST_BODY}).status_code == 413


@pytest.mark.parametrize("files", [{"../model.py": "x"}, {**FILE, "other.py": "x"}])
def test_only_the_files_of_the_exercise_are_taken(tmp_path: Path, files: dict[str, str]) -> None:
    with room(tmp_path) as here:
        assert here.browser(1).post("/task/02a/check", data=files).status_code == 409


def test_the_cookie_is_kept_from_scripts_and_other_sites_and_no_code_is_in_an_address(tmp_path: Path) -> None:
    with room(tmp_path) as here:
        answer = here.browser().post("/enter", data={"code": here.codes[1]})
        cookie = answer.headers["set-cookie"].lower()
        assert "httponly" in cookie and "samesite=strict" in cookie
        assert here.codes[1] not in str(answer.headers)


def test_wrong_codes_are_counted(tmp_path: Path) -> None:
    with room(tmp_path) as here:
        browser = here.browser()
        found = [browser.post("/enter", data={"code": "wrong"}).status_code for _ in range(WRONG + 1)]
        assert found == [403] * WRONG + [429]


def test_what_a_learners_code_says_is_shown_as_text(tmp_path: Path) -> None:
    script = "<script>alert(1)</script>"
    with room(tmp_path, lambda call: {"passed": False, "sentence": script, "rows": [script]}) as here:
        here.browser(1).post("/task/02a/check", data={"model.py": f"</textarea>{script}"})
        here.judged(1)
        for page in (here.browser(1).get("/task/02a").text, here.browser(0).get("/").text):
            assert "&lt;script&gt;" in page and script not in page


def test_markup_in_a_task_is_shown_as_text(tmp_path: Path) -> None:
    with room(tmp_path) as here:
        shown = here.hub.markdown("**bold** <img src=x onerror=alert(1)> [x](javascript:alert(1))")
        assert "<strong>bold</strong>" in shown and "<img" not in shown and 'href="javascript' not in shown


@pytest.mark.parametrize("answer", ["", "no JSON", "[]", json.dumps({"passed": True}), "[" * 100_000])
def test_an_answer_that_is_none_is_no_verdict(tmp_path: Path, answer: str) -> None:
    with room(tmp_path, lambda call: answer) as here:
        here.browser(1).post("/task/02a/check", data=FILE)
        here.judged(1)
        assert here.hub.room.desks[1].verdicts["02a"].sentence == LOST
        assert here.hub.room.desks[1].passed == []


def test_the_page_says_the_place_in_the_queue(tmp_path: Path) -> None:
    with room(tmp_path) as here:
        here.hold.clear()
        browsers = {number: here.browser(number) for number in (1, 2, 3)}
        for browser in browsers.values():
            browser.post("/task/02a/check", data=FILE)
        assert "waits at place" in browsers[3].get("/task/02a").text
        assert browsers[3].post("/task/02a/check", data=FILE).status_code == 409


def test_the_class_sees_which_wrong_answers_are_common(tmp_path: Path) -> None:
    with room(tmp_path, lambda call: {"passed": False, "sentence": "is there still a loop?", "rows": []}) as here:
        for learner in (1, 1, 2):
            here.browser(learner).post("/task/02a/check", data=FILE)
            here.judged(learner)
        assert here.hub.room.common() == [("02a", "is there still a loop?", 2)]


def test_progress_is_written_as_workshop_report_reads_it_and_outlives_the_hub(tmp_path: Path) -> None:
    from labctl.learn import group

    with room(tmp_path) as here:
        here.browser(2).post("/task/02a/check", data=FILE)
        here.judged(2)
    learners, bad = group.read(sorted((tmp_path / "report").glob("*.json")))
    assert [(name, states["02a"]) for name, states in learners] == [("learner-02", "passed")]
    assert bad == []
    with room(tmp_path) as again:
        assert again.hub.room.desks[2].passed == ["02a"]


def test_the_pages_need_nothing_from_elsewhere(tmp_path: Path) -> None:
    with room(tmp_path) as here:
        policy = here.browser(1).get("/task/02a").headers["content-security-policy"]
        assert "default-src 'none'" in policy and "http" not in policy
        for path in ("/hub.css", "/hub.js"):
            assert "//" not in here.browser().get(path).text.replace("// ", "").replace(ADDRESS, "")


def test_a_guess_is_counted_once_and_may_be_changed(tmp_path: Path) -> None:
    with room(tmp_path) as here:
        here.hub.guess.question = question = Question("iterative", "gpt2", ["a", "b"], ["c"])
        browser = here.browser(1)
        for names in (["a"], ["a", "c"]):
            assert browser.post("/guess", data={"request": names}).status_code == 303
        assert browser.post("/guess", data={"request": ["d"]}).status_code == 409
        question.batch = ["a", "c"]
        assert question.tally() == [("a", 1, True), ("b", 0, False), ("c", 1, True)]
        assert question.right == 1
        assert browser.post("/guess", data={"request": ["b"]}).status_code == 409
