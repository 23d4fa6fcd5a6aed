"""The router of lab 09: whom each policy chooses, and what a decision says."""

import pytest

from labkit.clients.router import POLICIES, SIZE, Router, score_each

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
