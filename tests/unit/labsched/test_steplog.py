"""The step log: its writer keeps the form of docs/develop/step-log.md, is bounded, and makes no unwanted text."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from checkout import ROOT
from hypothesis import given
from hypothesis import strategies as st
from step_schema import LINES, StepLine

from labctl import clock
from labkit.evidence import steplog
from labsched.log.steplog import MOST_BYTES, WATCHED, WATCHED_S, RequestNames, StepLog
from labserve.observe.watched_log import WatchedLog

PAGE = ROOT / "docs" / "develop" / "step-log.md"


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for path in folder.glob("steps-*.jsonl") for line in path.read_text().splitlines()]


@pytest.fixture(autouse=True)
def nobody_said_what_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LABS_STEP_LOG", raising=False)


@pytest.fixture
def open_log(tmp_path: Path) -> Iterator[Callable[..., StepLog]]:
    with ExitStack() as opened:

        def make(most_bytes: int = MOST_BYTES) -> StepLog:
            return opened.enter_context(closing(StepLog(str(tmp_path), "m", "0", most_bytes)))

        yield make


def test_a_written_line_has_the_documented_form(tmp_path: Path, open_log: Callable[..., StepLog]) -> None:
    log = open_log()
    log.write(time.monotonic(), [7, 9], rows=[0, 1], phase="dp", tokens=[1, 5], made=[1, 1], slots=2, own_count=3)
    log.write(time.monotonic(), [9], ended={"7": "length"}, joined=[], waiting=["10"], queue=1, why="no slot")
    first, second = (StepLine.model_validate(line) for line in lines(tmp_path))
    assert (first.n, first.ids, first.phase, second.n, second.waiting) == (1, ["7", "9"], "dp", 2, ["10"])
    assert "joined" not in lines(tmp_path)[1], "what is empty is left out"


def test_the_page_names_every_field_and_its_example_has_the_form() -> None:
    page = PAGE.read_text()
    page, theirs = page.split("## What your own vLLM writes")
    page += theirs[theirs.index("\n## ") :]  # its lines are shorter: labsched.vllm.reader fills them in
    named = {
        name
        for row in re.findall(r"^- ((?:`\w+`(?:, )?)+):", page, re.MULTILINE)
        for name in re.findall(r"`(\w+)`", row)
    }
    assert named == set(StepLine.model_fields)
    (example,) = re.findall(r'^ {4}(\{"v":2.+?\})$', page, re.MULTILINE | re.DOTALL)
    StepLine.model_validate_json(re.sub(r"\n\s+", "", example))
    for kind in ("scheduler", "request"):  # their fields are in the page's text
        (example,) = re.findall(rf'^ {{4}}(\{{"kind":"{kind}".+?\}})$', page, re.MULTILINE | re.DOTALL)
        LINES.validate_json(re.sub(r"\n\s+", "", example))


def test_a_long_life_takes_two_files_and_the_newest_steps_are_there(
    tmp_path: Path, open_log: Callable[..., StepLog]
) -> None:
    log = open_log(2000)
    for _ in range(200):
        log.write(time.monotonic(), ["1"])
    files = sorted(tmp_path.iterdir())
    assert [path.name for path in files] == ["steps-m-0.1.jsonl", "steps-m-0.jsonl"]
    assert all(path.stat().st_size <= 2000 for path in files)
    numbers = [step.more["n"] for step in steplog.read_step_log(tmp_path)]
    assert numbers == list(range(numbers[0], 201))


def test_a_change_without_a_step_is_no_step_to_its_reader(tmp_path: Path, open_log: Callable[..., StepLog]) -> None:
    log = open_log()
    log.write(time.monotonic(), [], kind="change", ended={"3": "cancelled"})
    StepLine.model_validate(lines(tmp_path)[0])
    assert steplog.read_step_log(tmp_path) == []


def test_texts_are_wanted_while_somebody_watches(tmp_path: Path, open_log: Callable[..., StepLog]) -> None:
    log = open_log()
    assert not log.texts
    watched = tmp_path / WATCHED
    watched.touch()
    assert log.texts
    long_ago = time.time() - WATCHED_S - 1
    os.utime(watched, (long_ago, long_ago))
    assert not log.texts


def test_a_run_with_texts_has_them_written_for_its_time(
    tmp_path: Path, open_log: Callable[..., StepLog], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clock, "RENEW_S", 0.01)
    log = open_log()
    with clock.keep_texts(tmp_path):
        assert log.texts
        long_ago = time.time() - WATCHED_S - 1
        os.utime(tmp_path / WATCHED, (long_ago, long_ago))
        deadline = time.monotonic() + 60
        while not log.texts:
            assert time.monotonic() < deadline, "it is not renewed"


@pytest.mark.parametrize(
    ("word", "wants_texts", "written"), [("off", False, 0), ("steps", False, 1), ("texts", True, 1)]
)
def test_the_environment_says_what_is_written(
    tmp_path: Path,
    open_log: Callable[..., StepLog],
    monkeypatch: pytest.MonkeyPatch,
    word: str,
    wants_texts: bool,
    written: int,
) -> None:
    monkeypatch.setenv("LABS_STEP_LOG", word)
    log = open_log()
    if word == "steps":
        (tmp_path / WATCHED).touch()
    assert log.texts is wants_texts
    log.write(time.monotonic(), ["1"])
    assert len(lines(tmp_path)) == written


def test_each_replica_logs_into_a_folder_of_its_own_and_the_reader_sees_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in ("1", "2"):
        (tmp_path / f"replica-{number}").mkdir()
        monkeypatch.setenv("LABS_REPLICA", number)
        with closing(WatchedLog(str(tmp_path), "m", "0")) as log:
            log.write(time.monotonic(), [f"request-{number}"])
    assert not [*tmp_path.glob("*.jsonl")]
    assert [step.ids for step in steplog.read_step_log(tmp_path)] == [["request-1"], ["request-2"]]
    assert [step.ids for step in steplog.read_step_log(tmp_path / "replica-2")] == [["request-2"]]


@given(st.lists(st.tuples(st.sampled_from(["a", "a#3", "a#4", "", "6", "x" * 80]), st.booleans())))
def test_no_two_live_requests_have_one_name_whatever_clients_call_theirs(calls: list[tuple[str, bool]]) -> None:
    names, live = RequestNames(), list[str]()
    for asked, ends in calls:
        name = names.take(asked)
        assert name not in live
        assert name == asked or asked in (*live, "", "x" * 80), "a name that is free is given"
        live.append(name)
        if ends:
            names.free(live.pop(0))
