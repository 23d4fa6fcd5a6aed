"""A run that is over, as one page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from lab_errors import lab_error
from step_logs import recorded

from labctl.pages.live import replay, story
from labctl.pages.live.replay import page_recording
from labkit.evidence import steplog
from labkit.evidence.records import RequestRecord


def run(folder: Path, phase: str, began: float, steps: int, **more: Any) -> None:
    head = {"dur": 0.5, "model": "m", "instance": "0", "kind": "step", "batch": 1, "ids": ["1"]}
    lines = [{**head, "t": began + n, **more} for n in range(steps)]
    (folder / f"steps-{phase}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"t": 1')


def test_the_phases_of_a_run_stand_one_after_the_other_in_lanes_of_their_own(tmp_path: Path) -> None:
    run(tmp_path, "b", 100.0, 2)
    run(tmp_path, "a", 900.0, 2)
    (tmp_path / "result.json").write_text('{"lab": "02-iterative"}')
    made = replay.page_recording(tmp_path)
    assert [lane["name"] for lane in made["lanes"]] == ["m (b)", "m (a)"]
    assert [lane["t"] for lane in made["lanes"]] == [[1_000_000, 1_000_000], [3_000_000, 1_000_000]]
    assert made["head"]["title"].startswith("02-iterative")


def test_each_replica_has_lanes_of_its_own(tmp_path: Path) -> None:
    for number in (1, 2):
        folder = tmp_path / "run" / f"replica-{number}"
        folder.mkdir(parents=True)
        run(folder, "m", 100.0, 2)
    steplog.keep_step_log(
        tmp_path / "run", tmp_path / "steps-a.jsonl", 0.0, [RequestRecord("1", "m", "", start=99, end=110)]
    )
    made = replay.page_recording(tmp_path)
    assert [lane["name"] for lane in made["lanes"]] == ["m (replica 1)", "m (replica 2)"]
    assert [len(lane["t"]) for lane in made["lanes"]] == [2, 2]


def test_warm_up_is_not_shown(tmp_path: Path) -> None:
    run(tmp_path, "a", 100.0, 3, warm_up=True)
    with lab_error("steps-none"):
        replay.page_recording(tmp_path)
    assert replay.write_timeline_page(tmp_path) is None and not (tmp_path / replay.NAME).exists()


def test_the_timeline_of_a_run_is_one_whole_file_and_is_what_watch_serves(tmp_path: Path) -> None:
    run(tmp_path, "a", 100.0, 3)
    path = replay.write_timeline_page(tmp_path)
    assert path and [file.name for file in tmp_path.iterdir() if file.suffix != ".jsonl"] == ["timeline.html"]
    assert len(recorded(path)["lanes"][0]["t"]) == 3
    assert replay.replay_page(tmp_path) == path.read_text()


def test_a_run_without_texts_says_so_and_how_to_have_them(tmp_path: Path) -> None:
    run(tmp_path, "a", 100.0, 3)
    assert replay.page_recording(tmp_path)["head"]["note"] == "texts were not recorded: labctl run --texts records them"
    run(tmp_path, "b", 100.0, 3, texts=[" fox"])
    made = replay.page_recording(tmp_path)
    assert "note" not in made["head"]
    assert ["".join(text) for text, _ in made["texts"]] == ["", " fox fox fox"]


def test_a_folder_that_is_no_run_is_named(tmp_path: Path) -> None:
    with lab_error("steps-none", tmp_path):
        replay.replay_page(tmp_path)


def asked(folder: Path, requests: list[dict[str, Any]]) -> None:
    """What the clients of phase a sent."""
    (folder / "requests.jsonl").write_text("".join(f"{json.dumps({'phase': 'a', **one})}\n" for one in requests))


def test_the_requests_of_two_models_have_the_same_names_in_order_of_arrival_and_their_prompts(tmp_path: Path) -> None:
    run(tmp_path, "a", 100.0, 2, ids=["7"], waiting=["9"])
    sent = [{"model": "m", "id": id, "prompt": f"I am {id}", "start": at} for id, at in (("9", 99.5), ("7", 98.0))]
    asked(tmp_path, [*sent, *({"model": "n", "id": id, "start": at} for id, at in (("1", 98.5), ("2", 99.0)))])
    made = replay.page_recording(tmp_path)
    assert made["requests"] == [[0, "7", "I am 7", "A"], [0, "9", "I am 9", "B"]]
    assert [(title, ids, lanes) for title, _, ids, lanes in made["groups"]] == [
        ("m", ["7", "9"], [0]),
        ("n", ["1", "2"], [0]),
    ]
    zero, first = made["groups"][0][1], made["lanes"][0]["t"][0] / 1e6
    assert round(first - zero, 6) == 2.0, "seconds from the first arrival to the end of the first step"


def test_ids_that_triton_gave_are_those_of_the_requests_in_their_order(tmp_path: Path) -> None:
    run(tmp_path, "a", 100.0, 2, ids=["5", "6"])
    asked(tmp_path, [{"model": "m", "id": id, "prompt": id, "start": at} for id, at in (("x", 2.0), ("y", 1.0))])
    assert [(one.id, one.prompt) for one in replay.asked_for(tmp_path, "a")["m"]] == [("5", "y"), ("6", "x")]


@pytest.mark.parametrize(
    "fields", [{"rows": ["x"]}, {"rows": [2**40]}, {"waiting": 5}, {"before": 5}, {"block_ids": 5}]
)
def test_a_line_of_another_form_is_refused_by_the_page_of_a_run(fields: dict[str, Any], tmp_path: Path) -> None:
    head = {"v": 2, "model": "m", "instance": "0"}
    line = {**head, "n": 1, "t": 1.0, "dur": 0.1, "kind": "step", "batch": 1, "ids": ["a"], **fields}
    (tmp_path / "steps-a.jsonl").write_text(json.dumps(line) + "\n")
    with lab_error("step-log-invalid"):
        page_recording(tmp_path)


def test_files_beside_a_step_log_that_are_nested_too_deeply_count_as_none(tmp_path: Path) -> None:
    head = {"v": 2, "model": "m", "instance": "0"}
    line = {**head, "n": 1, "t": 1.0, "dur": 0.1, "kind": "step", "batch": 1, "ids": ["a"]}
    (tmp_path / "steps-a.jsonl").write_text(json.dumps(line) + "\n")
    for name in ("requests.jsonl", "result.json"):
        (tmp_path / name).write_text("[" * 200_000)
    assert page_recording(tmp_path)["head"]["title"] == tmp_path.name
    assert [lane.requests() for lane in story.of_result(tmp_path)]
