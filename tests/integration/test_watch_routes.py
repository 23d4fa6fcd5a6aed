"""The live page of lab 09's servers: a router that is wrong about what a server keeps is seen to be."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lab_errors import lab_error
from lab_server import LabServer
from watch_page import Visitor, watch

from labkit.client.ask import TextStream, text_tensor
from labkit.client.router import POLICIES, Router, score_each

pytestmark = [pytest.mark.night, pytest.mark.xdist_group("two-servers")]
MODEL = "apart-gpt2"
PROMPT = "I have lived in a village near the river for as long as people can remember, and every day I walk there"
FAST: dict[str, Any] = {"step_ms": 0, "token_ms": 0}


def sent(stream: TextStream, route: str) -> str:
    """A request that says why it came here; its name in the log."""
    inputs = [text_tensor("text_input", PROMPT), text_tensor("route", route)]
    record = stream.send_inputs(MODEL, PROMPT, inputs, max_tokens=4, ignore_eos=True)
    stream.wait(record, timeout=60)
    return record.id


@pytest.mark.parametrize(("kept_blocks", "found"), [(0, 0), (64, 16)])
def test_the_page_shows_the_decision_and_what_the_server_found(
    browser: Any, lab_server: Callable[..., LabServer], checkout: Path, kept_blocks: int, found: int
) -> None:
    server = lab_server("two-servers", **FAST, kept_blocks=kept_blocks)
    router = Router(["1", "2"], score_each(POLICIES["least work"]), 64)  # it believes that 64 blocks are kept
    ids = list(range(16))  # the prompt has this block, as far as the router knows
    names = []
    with watch("two-servers", checkout) as address, TextStream(server.grpc) as stream:
        for _ in range(3):
            decision = router.choose(ids)
            names.append(sent(stream, json.dumps({"policy": "least work", **decision.to_json()})))
            router.answered(decision, ids)
        visitor = Visitor(browser, address)
        try:
            row = visitor.page.locator(f"#routes tr:has(th:has-text('{names[-1]}'))")
            row.locator("td.chosen", has_text="16 cached; 0 there, 0 left").wait_for()
            assert row.locator("td").last.inner_text() == str(found)
            visitor.page.get_by_role("button", name="The router's decisions in words").click()
            told = visitor.page.locator("#routes-told li").first.inner_text()
            assert told.startswith(
                f"request {names[-1]} went to server 1: score 0, the highest of 2; 16 of its 16 tokens"
            )
            assert told.endswith(f"the server found {found}")
            wrong = "The servers do not have what the router remembers" in visitor.page.inner_text("#routes-sum")
            assert wrong == (found == 0)
            assert visitor.page.evaluate("document.documentElement.scrollWidth") <= 1280
        finally:
            visitor.page.close()


def test_a_route_that_is_none_is_refused_and_named(lab_server: Callable[..., LabServer]) -> None:
    with TextStream(lab_server("two-servers", **FAST).grpc) as stream, lab_error("model-error", "route"):
        sent(stream, "{}")
