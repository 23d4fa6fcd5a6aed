"""Time that is counted from steps: what the server is sent after as many steps took as long as the replay says."""

from __future__ import annotations

import pytest
import recordings

from labsched.counted_time import Cost, good_share, replay_counted
from labsched.slo import Slo

WORDS = recordings.WORDS | {"max_num_sequences": "2", "max_num_tokens": "64", "max_tokens_in_paged_kv_cache": "1024"}
COST = Cost(step=10, decode=1, prompt=0.5)


def test_a_request_arrives_after_the_steps_that_began_before_it() -> None:
    """The first two steps begin at 0 and 15 ms, the third at 26."""
    after, found = replay_counted(WORDS, [(10, 3), (10, 2)], [0.0, 20.0], COST)
    assert after == [0, 2]
    assert found == [(15.0, pytest.approx((42 - 15) / 2)), (pytest.approx(42 - 20), 11.0)]


def test_nothing_takes_time_between_the_last_answer_and_the_next_request() -> None:
    after, found = replay_counted(WORDS, [(10, 1), (10, 1)], [0.0, 1000.0], COST)
    assert after == [0, 1]
    assert found == [(15.0, 0.0), (15.0, 0.0)]


def test_a_request_beyond_one_limit_is_not_good() -> None:
    assert good_share([(100, 5), (100, 50), (900, 5)], Slo(ttft=500, tpot=10)) == pytest.approx(1 / 3)
