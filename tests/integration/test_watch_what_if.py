"""`labctl watch --what-if` in a real browser: another policy's strip under the real one, and where the two part."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lab_server import LabServer
from machinery import labctl
from watch_page import Visitor, watch

pytestmark = [pytest.mark.night, pytest.mark.xdist_group("llm")]
STACK, ENGINE, POLICY = "inflight-batching", "tensorrt_llm", "max_num_sequences=1"
OTHER = f"what if {POLICY}"
# The colour of the line that stands before a step's column, half way up its lane.
MARKED = """([model, number]) => {
    const view = watching.views.find((view) => view.lane.model === model), strip = view.strip;
    const place = view.lane.steps.findIndex((step) => step.number === number) + view.lane.first;
    const x = strip.xOf(place, watching.placeOf(view.index)) * strip.scale, y = 40 * strip.scale;
    return [...strip.context.getImageData(Math.max(0, x), y, 1, 1).data].slice(0, 3);
}"""
RED = [161, 29, 29]


@pytest.fixture(scope="module")
def server(lab_server: Callable[..., LabServer]) -> LabServer:
    return lab_server(STACK, model="random:tiny-llama")


def test_the_strip_of_another_policy_appears_and_marks_the_step_at_which_it_parts(
    browser: Any, server: LabServer, checkout: Path
) -> None:
    with watch(STACK, checkout, "--what-if", POLICY) as address:
        visitor = Visitor(browser, address)
        try:
            visitor.pause()
            names = [visitor.ask("ensemble", "I have lived in", tokens) for tokens in (60, 90)]
            for name in names:
                visitor.lane(ENGINE).locator(".held", has_text=name).wait_for()
            visitor.resume()
            for name in names:
                visitor.over(name)
            parted = visitor.lane(OTHER).locator(".parted")
            parted.get_by_text("no slot: 1 of 1 are taken").wait_for()
            log = "".join(path.read_text() for path in server.run_dir.glob(f"steps-{ENGINE}-*.jsonl"))
            steps = [line for line in map(json.loads, log.splitlines()) if line["kind"] == "step"]
            first = next(step["n"] for step in steps if {*names} <= {*step["ids"]})
            real, other = visitor.page.evaluate("watching.whatIf.partings.at(-1).at")
            assert real == first
            assert parted.get_attribute("data-step") == str(other)
            parted.get_by_role("button", name=f"First difference: step {other}").click()
            visitor.until("watching.views.some((view) => view.whatIf && view.strip.right !== null)")
            visitor.until("!watching.dirty && !watching.stale")
            assert visitor.page.evaluate(MARKED, [ENGINE, real]) == RED
            assert visitor.page.evaluate(MARKED, [OTHER, other]) == RED
            together = "watching.views.find((view) => view.whatIf).lane.steps.map((step) => step.members.length / 5)"
            assert max(visitor.page.evaluate(together)) == 1
            assert visitor.page.evaluate("document.documentElement.scrollWidth") <= 1280
            visitor.page.get_by_role("button", name=f"What if: {POLICY}").click()
            visitor.lane(OTHER).wait_for(state="hidden")
        finally:
            labctl("clock", STACK, "run", root=checkout)
            visitor.page.close()


def test_what_cannot_be_replayed_is_refused_before_the_page_is_there(server: LabServer, checkout: Path) -> None:
    done = labctl("watch", STACK, "--port", "0", "--what-if", "speculation=draft", root=checkout, check=False)
    assert done.returncode != 0 and "speculation cannot be predicted" in done.stderr
    assert "http://" not in done.stdout
