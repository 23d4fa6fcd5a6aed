"""Prompts that share their beginnings: what a policy sees of the KV cache, and the policy that goes by it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from labkit.predict import games, referee
from labkit.predict.field import PlayingField
from labkit.predict.policy import Foul, Player
from labkit.predict.traces import hashes
from labsched.recording import Arrival

ARENA = Path(__file__).resolve().parents[2] / "labs" / "extras" / "arena"
ONE = PlayingField(slots=1, blocks=6, block_size=4, step_tokens=32)  # memory for one request and no more
DOCUMENT, QUESTION, ANSWER = 16, 4, 4  # tokens


def questions(*documents: str, apart: float = 0.0) -> list[Arrival]:
    """A question about each of these documents, ``apart`` seconds after the one before."""
    return [
        Arrival(
            str(number),
            number * apart,
            0,
            DOCUMENT + QUESTION,
            ANSWER,
            ANSWER,
            "length",
            prefixes=hashes(document, 0, DOCUMENT) + hashes(f"question {number}", 0, QUESTION),
        )
        for number, document in enumerate(documents, 1)
    ]


def cached(policy: str, trace: Sequence[Arrival], ground: PlayingField) -> float:
    with Player(ARENA / f"{policy}.py") as player:
        return referee.play_trace(player, trace, ground)["cached_tokens"]


def test_the_longest_prefix_first_computes_each_document_once() -> None:
    """Theorem 3.1 of its paper: all requests are there, and the cache holds the longest."""
    trace = questions(*"abcabcabc")
    assert cached("longest_prefix", trace, ONE) == 6 * DOCUMENT
    assert cached("fcfs", trace, ONE) == 0


@pytest.mark.parametrize(("other", "tokens"), [("a", DOCUMENT), ("b", 0)])
def test_a_view_counts_what_a_waiting_request_would_find_in_the_cache(tmp_path: Path, other: str, tokens: int) -> None:
    policy = tmp_path / "policy.py"
    policy.write_text(
        "def line(view):\n    if view.waiting[0].id == '2': raise ValueError(view.waiting[0].cached)\n    return []"
    )
    with pytest.raises(Foul, match=f"ValueError: {tokens}$"), Player(policy) as player:
        referee.play_trace(player, questions("a", other, apart=60.0), ONE)


def test_a_preemption_leaves_no_half_computed_prompt_for_which_requests_wait_for_ever() -> None:
    long = Arrival("long", 0.0, 0, 24, 4, 4, "length", prefixes=hashes("long", 0, 24))
    trace = [Arrival("grows", 0.0, 0, 4, 20, 20, "length"), long]
    with Player(ARENA / "fcfs.py") as player:
        found = referee.play_trace(player, trace, PlayingField(slots=2, blocks=10, block_size=4, step_tokens=4))
    assert found["preemptions"] == 1


def test_prompts_share_nothing_where_the_trace_does_not_say_what_they_have_in_common() -> None:
    trace = [replace(one, prefixes=b"") for one in questions(*"aaa")]
    assert cached("longest_prefix", trace, ONE) == 0


@pytest.mark.parametrize("seed", range(3))
def test_on_the_trace_of_documents_the_longest_prefix_first_finds_more_than_first_come_first_served(seed: int) -> None:
    trace = games.documents(random.Random(seed), games.REQUESTS)
    assert cached("longest_prefix", trace, PlayingField()) > 1.1 * cached("fcfs", trace, PlayingField())
