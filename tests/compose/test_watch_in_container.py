"""The live page and the clock of a server in a container: its run folder is all that they have of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from browsing import browser
from machinery import labctl
from watch_page import Visitor, watch

from labkit.evidence import steplog
from labsched.step import Step

pytestmark = pytest.mark.night

__all__ = ["browser"]

STACK, MODEL = "iterative", "iterative-gpt2"
TOKENS = 6


@pytest.mark.xdist_group("containers")
def test_the_clock_stops_a_server_in_a_container_and_the_page_reads_its_log(
    browser: Any, in_containers: Callable[..., dict[str, Any]], shared: Path
) -> None:
    in_containers(STACK)
    run_dir = shared / ".labs" / STACK / "run"
    with watch(STACK, shared) as address:
        visitor = Visitor(browser, address)
        visitor.pause()
        name = visitor.ask(MODEL, "I have lived in", TOKENS)
        shown = "(name) => [...watching.store.asked.values()].find((ask) => ask.name === name).called"
        called = visitor.page.evaluate(shown, name)
        visitor.lane(MODEL).locator(".held", has_text=called).wait_for()
        assert steps_of(run_dir, name) == [], "a step was made while the clock stood still"
        said = labctl("clock", STACK, "step", "2", "--model", MODEL, root=shared).stdout
        assert f"{MODEL}: 2 steps" in said
        assert [step.ids for step in steps_of(run_dir, name)] == [[name]] * 2
        assert visitor.batch(MODEL, steps_of(run_dir, name)[-1].more["n"]) == 1
        visitor.resume()
        visitor.over(name)
        assert len(steps_of(run_dir, name)) == TOKENS
        text = "".join(step.more["texts"][0] for step in steps_of(run_dir, name))
        assert visitor.page.locator(f".request:has(b:text-is('{called}')) p").inner_text() == f"I have lived in{text}"
        visitor.page.close()


def steps_of(run_dir: Path, name: str) -> list[Step]:
    """The steps that a request was in; those before it were of whoever asked whether the server is ready."""
    return [step for step in steplog.read_step_log(run_dir, MODEL) if name in step.ids]
