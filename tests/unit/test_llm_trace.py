"""The scheduler's docstring shows six steps of it, as they are."""

from __future__ import annotations

import doctest

from counting_engine import CountingEngine

from labsched import scheduler
from labsched.kv_budget import KVBudget
from labsched.request import Request


def test_the_trace_in_the_docstring_of_a_step_is_what_happens() -> None:
    names = {"CountingEngine": CountingEngine, "KVBudget": KVBudget, "Request": Request}
    ran = doctest.testmod(scheduler, extraglobs=names, raise_on_error=False)
    assert ran.attempted >= 3 and not ran.failed
