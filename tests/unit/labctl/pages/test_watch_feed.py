"""From step logs to what the page takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from step_logs import step

from labctl.pages.live.feed import Feed
from labctl.pages.live.tail import StepLogTail

HEAD = {"model": "m", "instance": "0", "kind": "step", "dur": 0.01}


def line(t: float, ids: list[str], **more: Any) -> dict[str, Any]:
    return {"t": t, **HEAD, "batch": len(ids), "ids": ids, **more}


def full(n: int, ids: list[str], **more: Any) -> dict[str, Any]:
    return step(n, ids, instance="0", **more)


def test_a_request_has_one_number_while_it_lives_and_another_when_its_name_comes_back() -> None:
    lines = [
        full(1, ["7"], seats=["7"]),
        full(2, ["7"], ended={"7": "length"}, seats=[""]),
        full(3, ["7"], seats=["7"]),
    ]
    _, *steps = Feed().events(lines)
    assert [step["r"][0] for step in steps] == [0, 0, 1]
    assert steps[0]["q"] == [[0, "7", "", "A"]] and "q" not in steps[1] and steps[2]["q"] == [[1, "7", "", "A"]]
    assert steps[1]["e"] == [[0, "length"]]


def test_a_log_without_seats_gets_the_lowest_free_seats_and_keeps_them() -> None:
    lines = [line(1, ["a", "b"], phase="pp"), line(2, ["a", "b"]), line(3, ["b"]), line(4, ["b", "c"], phase="dp")]
    _, *steps = Feed().events(lines)
    assert [step["r"][1::5] for step in steps] == [[0, 1], [0, 1], [1], [1, 0]]
    assert [step["r"][2::5] for step in steps] == [[1, 1], [0, 0], [0], [0, 1]]


def test_who_waits_and_why_is_told_in_order_with_the_blocks_of_each() -> None:
    memory = {"blocks": [3], "kv_blocks": 8, "kv_blocks_used": 3}
    waits = {"waiting": ["2", "3"], "why": "no KV block", "queue": 70, "evicted": ["3"]}
    told = full(1, ["1"], **memory, **waits, seats=["1"], slots=2, texts=["a"], prompts={"1": "Once"})
    _, event = Feed().events([told])
    assert event["w"] == [1, 2] and event["y"] == "no KV block" and event["more"] == 68
    assert event["r"] == [0, 0, 0, 1, 3] and event["kv"] == [3, 8] and event["v"] == [2] and event["x"] == ["a"]
    assert event["q"][0] == [0, "1", "Once", "A"] and event["z"] == 2


def test_the_blocks_of_an_engine_with_a_block_table_are_told_by_their_ids() -> None:
    memory = {"blocks": [2, 1], "block_ids": [[4, 6], [1]], "kv_blocks": 8, "kv_blocks_used": 3}
    _, event = Feed().events([full(1, ["7", "9"], **memory, ended={"9": "length"})])
    assert event["kb"] == [[0, [4, 6]], [1, [1]]]
    assert [number for number, *_ in event["q"]] == [0, 1], "a request that ends in the step is not taken for a new one"


def test_a_seat_that_is_held_without_a_step_is_told() -> None:
    _, held, plain = Feed().events([full(1, ["1"], seats=["1", "2"]), full(2, ["1", "2"], seats=["1", "2"])])
    assert held["s"] == [0, 0, 1, 1] and "s" not in plain


def test_a_change_without_a_step_is_told_as_one() -> None:
    left = line(2, [], v=2, ended={"1": "cancelled"}, seats=[""]) | {"kind": "change"}
    _, _, change = Feed().events([full(1, ["1"], seats=["1"]), left])
    assert change["k"] == "state" and change["s"] == [] and change["e"] == [[0, "cancelled"]]


def test_each_instance_of_a_model_has_a_lane() -> None:
    other = line(2, ["1"]) | {"instance": "1"}
    first, _, second, _ = Feed().events([line(1, ["1"]), other])
    assert (first["name"], second["name"]) == ("m", "m (1)")


def test_a_tail_reads_what_is_new_once_and_waits_for_the_rest_of_a_line(tmp_path: Path) -> None:
    path, text = tmp_path / "steps-m-0.jsonl", json.dumps(line(1, ["1"]))
    path.write_text(text + "\n" + text[:20])
    tail = StepLogTail(tmp_path)
    assert len(tail.read()) == 1 and not tail.read()
    with path.open("a") as stream:
        stream.write(text[20:] + "\n")
    assert [found["ids"] for found in tail.read()] == [["1"]]


def test_a_tail_follows_a_log_that_is_rotated_and_loses_no_line(tmp_path: Path) -> None:
    path = tmp_path / "steps-m-0.jsonl"
    lines = [json.dumps(line(number, [str(number)])) + "\n" for number in (1, 2, 3)]
    path.write_text(lines[0])
    tail = StepLogTail(tmp_path)
    tail.read()
    path.write_text(lines[0] + lines[1])
    path.rename(tmp_path / "steps-m-0.1.jsonl")
    path.write_text(lines[2])
    assert [found["ids"] for found in tail.read()] == [["2"], ["3"]]


def test_a_sequence_keeps_its_seat_between_its_requests() -> None:
    _, first, second, third = Feed().events(
        [
            full(1, ["1001"], rows=[2], start=[1], end=[0]),
            full(2, ["1002"], start=[1], end=[0]),
            full(3, ["1001"], rows=[2], start=[0], end=[1], ended={"1001": "client"}),
        ]
    )
    assert "s" not in first and second["s"] == [1, 0, 0, 2] and third["s"] == [1, 0]
