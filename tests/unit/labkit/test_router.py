"""The router of lab 09: whom each policy chooses, and its decisions beside what the servers found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from step_schema import LINES

from labctl.pages.live import replay
from labctl.pages.live.routes import RouteEvent, Routes, RouteTail, describe_routes
from labkit.client.router import POLICIES, SIZE, Router, score_each
from labserve.gpt2.apart import MOST_ROUTE, route_of
from labserve.params import BadInput

LONG = list(range(4 * SIZE))


def chosen(policy: str, *asks: tuple[list[int], str]) -> list[str]:
    """The server of each request, none of which is answered."""
    router = Router(["1", "2"], score_each(POLICIES[policy]), 64)
    return [router.choose(ids, session).replica for ids, session in asks]


def test_round_robin_takes_each_server_in_turn() -> None:
    assert chosen("round robin", *[(LONG, "a")] * 4) == ["1", "2", "1", "2"]


def test_affinity_keeps_a_session_on_one_server() -> None:
    sessions = [f"session {number}" for number in range(20)]
    first, again = (chosen("affinity", *[(LONG, session) for session in sessions]) for _ in range(2))
    assert first == again and set(first) == {"1", "2"}


def test_least_work_sends_a_prompt_to_its_blocks() -> None:
    router = Router(["1", "2"], score_each(POLICIES["least work"]), 64)
    for ids in ([1] * 32, LONG):
        router.answered(router.choose(ids), ids)
    decision = router.choose([*LONG, 5])
    assert decision.candidates[decision.replica].cached == len(LONG)
    assert {candidate.cached for candidate in decision.candidates.values()} == {0, len(LONG)}


def test_least_work_leaves_the_blocks_where_too_much_is_to_be_computed() -> None:
    router = Router(["1", "2"], score_each(POLICIES["least work"]), 64)
    router.answered(router.choose(LONG), LONG)
    asked = [router.choose([*LONG, *[number] * SIZE]) for number in range(100, 112)]
    assert {decision.replica for decision in asked} == {"1", "2"}
    assert asked[0].replica == "1"


def test_what_a_server_has_no_room_for_is_not_expected_there() -> None:
    router = Router(["1"], score_each(POLICIES["least work"]), 4)
    for ids in (LONG, [7] * 3 * SIZE):
        router.answered(router.choose(ids), ids)
    assert router.choose([*LONG, 1]).candidates["1"].cached == 0


def test_a_request_that_has_ended_is_no_load() -> None:
    router = Router(["1"], score_each(POLICIES["least work"]), 4)
    router.answered(router.choose(LONG), LONG)
    candidate = router.choose(LONG).candidates["1"]
    assert (candidate.requests, candidate.tokens) == (0, 0)


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_a_decision_says_every_score(policy: str) -> None:
    line = Router(["1", "2"], score_each(POLICIES[policy]), 4).choose(LONG, "a").to_json()
    assert set(line["scores"]) == set(line["candidates"]) == {"1", "2"}
    assert line["scores"][line["replica"]] == max(line["scores"].values())


# -- what is told of decisions -----------------------------------------------------------------------------------------


def route(replica: str = "2", cached: tuple[int, int] = (0, 64), policy: str = "least work") -> dict[str, Any]:
    known = {"prompt": 80, "requests": 1, "tokens": 7, "home": False, "turn": True}
    candidates = {name: {**known, "cached": count} for name, count in zip("12", cached, strict=True)}
    scores = {name: float(count - 87) for name, count in zip("12", cached, strict=True)}
    return {"policy": policy, "session": "a", "replica": replica, "scores": scores, "candidates": candidates}


def line(number: int, found: int, decision: Any) -> dict[str, Any]:
    """The step in which a request joins one that decodes."""
    return {
        **{"v": 2, "n": number, "t": float(number), "dur": 0.01, "model": "m", "instance": "0", "kind": "step"},
        **{"batch": 2, "ids": ["0", str(number)], "phase": "dp", "cached": [0, found]},
        "routes": {str(number): decision},
    }


def events(*found: int, **decision: Any) -> list[RouteEvent]:
    return Routes().events([line(number, tokens, route(**decision)) for number, tokens in enumerate(found, 1)])


def test_a_decision_stands_beside_what_the_server_found() -> None:
    (event,) = events(48)
    assert (event["request"], event["chosen"], event["prompt"], event["found"]) == ("1", "2", 80, 48)
    assert [(one["name"], one["score"], one["cached"]) for one in event["servers"]] == [
        ("1", "-87", 0),
        ("2", "-23", 64),
    ]


def test_the_words_say_score_expectation_and_finding_and_name_a_server_that_had_more_of_the_prompt() -> None:
    (event,) = events(48)
    assert all(word in event["words"] for word in ("server 2: score -23, the highest of 2", "64 of its 80", "found 48"))
    (event,) = events(0, replica="1")
    assert "not the highest, which server 2 had" in event["words"]
    assert event["words"].endswith("server 2 had 64, with score -23")


@pytest.mark.parametrize(
    ("found", "decision", "why"),
    [
        ((0, 0), {}, "The servers do not have what the router remembers"),
        ((0, 0), {"replica": "1"}, "2 requests went past a server that had more of the prompt."),
        ((0, 0), {"cached": (0, 0)}, "no server had the beginning of any prompt"),
        ((64, 64), {}, "found 128 (80%)."),
    ],
)
def test_the_sum_says_why_little_was_found(found: tuple[int, ...], decision: dict[str, Any], why: str) -> None:
    assert why in events(*found, **decision)[-1]["sum"]


def test_the_sum_begins_again_with_another_policy() -> None:
    lines = [line(1, 0, route()), line(2, 64, route(policy="affinity"))]
    assert Routes().events(lines)[-1]["sum"].startswith("affinity, 1 request: of 80 prompt tokens")


@pytest.mark.parametrize(
    "broken", [None, [], "x", {}, {"replica": "2"}, {**route(), "replica": "9"}, {**route(), "scores": {}}]
)
def test_what_is_no_decision_is_left_out(broken: Any) -> None:
    assert Routes().events([line(1, 0, broken), line(2, 0, route())])[0]["request"] == "2"


def test_a_score_without_end_reaches_the_page_as_text() -> None:
    decision = route()
    decision["scores"]["1"] = float("-inf")
    logged = route_of(json.dumps(decision).encode())
    (event,) = Routes().events([line(1, 0, logged)])
    assert json.loads(json.dumps(event, allow_nan=False))["servers"][0]["score"] == "-inf"


def test_the_decisions_of_all_servers_come_in_order_of_time(tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / f"replica-{number}").mkdir()
        lines = [json.dumps(line(n, 0, route())) + "\n" for n in (number, number + 2)]
        (tmp_path / f"replica-{number}" / "steps-m-0.jsonl").write_text("".join(lines))
    tail = RouteTail(tmp_path / "replica-2")
    assert [event["request"] for event in tail.read()] == ["1", "2", "3", "4"]
    assert tail.read() == [] and len(tail.recent) == 4


def test_a_recording_has_the_decisions_at_its_own_times(tmp_path: Path) -> None:
    (tmp_path / "steps-routing.jsonl").write_text("".join(json.dumps(line(n, 0, route())) + "\n" for n in (1, 2)))
    first, second = replay.page_recording(tmp_path)["routes"]
    assert second["t"] - first["t"] == pytest.approx(1.0) and first["t"] < 1.0


def test_the_decision_about_one_request_is_told_alone() -> None:
    (words,) = describe_routes([line(1, 0, route()), line(2, 48, route())], "2")
    assert words == events(0, 48)[1]["words"]


def test_the_routers_own_decision_is_one_that_a_server_takes_and_the_log_holds() -> None:
    router = Router(["1", "2"], score_each(POLICIES["least work"]), 64)
    logged = route_of(json.dumps({"policy": "p", "session": "s", **router.choose(LONG).to_json()}).encode())
    LINES.validate_python(line(1, 0, logged))
    (event,) = Routes().events([line(1, 0, logged)])
    assert event["chosen"] == logged["replica"]


@pytest.mark.parametrize(
    "raw",
    [
        *("no JSON", "[]", "{}", '{"replica": 1, "scores": {}, "candidates": {}}', "[" * 5000),
        '{"scores": {"1": []}, "candidates": {"1": {}}}',
        '{"scores": {"1": 1}, "candidates": {"2": {}}}',
        '{"scores": {}, "candidates": {}, "more": 1}',
        json.dumps({"replica": "x" * MOST_ROUTE, "scores": {}, "candidates": {}}),
    ],
)
def test_a_server_refuses_a_route_of_another_form_by_name(raw: str) -> None:
    with pytest.raises(BadInput, match=r"^route: "):
        route_of(raw.encode())
