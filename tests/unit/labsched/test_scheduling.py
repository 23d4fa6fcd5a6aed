"""Whatever is asked, in whatever order: the rules of every step, under each policy and each order."""

from __future__ import annotations

import pytest
from scheduling_machine import Ours, keeps_the_rules

from labsched.order import ORDERS
from labsched.policy import Policy


@pytest.mark.parametrize("examples", [8, pytest.param(100, marks=pytest.mark.night)])
@pytest.mark.parametrize("word", ORDERS)
@pytest.mark.parametrize(
    ("policy", "static"),
    [(Policy.MAX_UTILIZATION, False), (Policy.GUARANTEED_NO_EVICT, False), (Policy.GUARANTEED_NO_EVICT, True)],
)
def test_every_step_keeps_the_rules_whatever_comes(policy: Policy, static: bool, word: str, examples: int) -> None:
    keeps_the_rules(Ours, examples, policy=policy, static=static, word=word)
