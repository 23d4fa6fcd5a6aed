"""The best schedule that a search finds, against which the arena's policies are measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import optimum
from labkit.predict.field import Field
from labkit.predict.policy import Player
from labkit.predict.recording import Arrival

ARENA = Path(__file__).resolve().parents[2] / "labs" / "extras" / "arena"


def requests(*lengths: tuple[int, int]) -> list[Arrival]:
    return [Arrival(str(n), 0.0, 0, prompt, made, made, "length") for n, (prompt, made) in enumerate(lengths, 1)]


@pytest.mark.parametrize(
    ("slots", "blocks", "lengths", "steps"),
    [
        (1, 9, [(1, 3), (1, 1)], 1 + 4),  # one slot: the short one first
        (2, 9, [(1, 3), (1, 1)], 3 + 1),  # both at once
        (
            2,
            2,
            [(4, 2), (4, 2), (4, 1)],
            1 + 2 + 4,
        ),  # two blocks: two prompts of one block fit, a second token needs both
    ],
)
def test_the_best_schedule_is_the_one_that_a_person_finds(
    slots: int, blocks: int, lengths: list[tuple[int, int]], steps: int
) -> None:
    ground = Field(slots=slots, blocks=blocks, block_size=4, step_tokens=512)
    assert optimum.best(requests(*lengths), ground) == steps


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("name", ["fcfs", "memory_ahead"])
def test_no_policy_is_better_than_the_best(name: str, told: bool) -> None:
    (ratios,) = optimum.ratios([ARENA / f"{name}.py"], 6, told).values()
    assert min(ratios) >= 1 and max(ratios) > 1


def test_the_steps_of_a_policy_are_those_of_the_scheduler() -> None:
    ground = Field(slots=1, blocks=9, block_size=4, step_tokens=512)
    with Player(ARENA / "fcfs.py") as policy:
        assert optimum.of_policy(policy, requests((1, 3), (1, 1)), ground) == 3 + 4
