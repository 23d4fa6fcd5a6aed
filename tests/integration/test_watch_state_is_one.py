"""The page and the terminal read the same log: at every line they show the same state."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import step_logs

from labctl.pages.live import replay
from labctl.pages.live.feed import Feed
from labctl.pages.live.page import document
from labctl.pages.live.state import LiveState, ModelView

pytestmark = pytest.mark.night

SEEDS, STEPS = (1, 2), 400
SHOWN = """(index, place, time) => {
    const { store } = watching, state = store.stateAt(index, place), lane = store.lanes[index];
    const name = (request) => store.requests[request].id, packed = state.step?.members ?? [];
    const members = packed.filter((_, k) => k % 5 === 0);
    const here = [...members, ...state.seated.values()];
    const texts = new Map(here.map((one) => [name(one), store.textOf(one, place, 1e6)]));
    return {
        step: state.step?.number ?? 0, batch: members.map(name), waiting: state.waiting.map(name),
        seats: Object.fromEntries([...state.seated].map(([seat, one]) => [seat, name(one)])),
        queue: state.waiting.length + state.more, why: [...new Set([state.why].flat())].sort().join(", "),
        kv: [state.kv?.used ?? 0, state.kv?.blocks ?? 0],
        blocks: Object.fromEntries([...state.blocks].map(([one, count]) => [name(one), count])),
        texts: Object.fromEntries(texts), rate: Math.round(lane.rate(place, time) * 1e3) / 1e3,
    };
}"""
LIVE = f"""(told) => told.map(([events, index, time]) => {{
    for (const event of events) watching.store.take(event);
    return ({SHOWN})(index, watching.store.lanes[index].end, time);
}})"""
REPLAYED = f"""() => watching.store.lanes.map((lane, index) =>
    Array.from({{ length: lane.end + 1 }}, (_, place) => place).slice(1).map((place) =>
        ({SHOWN})(index, place, lane.at(place - 1).time)))"""


def shown(view: ModelView) -> dict[str, Any]:
    """What the terminal draws from, in the same words."""
    names = {*view.batch, *filter(None, view.seats)}
    return {
        "step": view.steps[-1]["n"] if view.steps else 0,
        "batch": view.batch,
        "waiting": view.waiting,
        "seats": {str(seat): name for seat, name in enumerate(view.seats) if name},
        "queue": view.queue,
        "why": view.why if view.waiting else "",
        "kv": [view.kv_blocks_used, view.kv_blocks],
        "blocks": dict(view.blocks),
        "texts": {name: view.requests[name].text for name in names},
        "rate": pytest.approx(view.rates()[1], rel=1e-3, abs=2e-3),
    }


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    page = browser.new_page(bypass_csp=True)
    try:
        yield page
    finally:
        page.close()


@pytest.mark.parametrize("seed", SEEDS)
def test_page_and_terminal_show_the_same_after_every_line_that_comes(page: Any, seed: int, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(document(), encoding="utf-8")
    page.goto((tmp_path / "page.html").as_uri())
    state, feed = LiveState(), Feed()
    lanes: dict[tuple[str, str], int] = {}
    told, drawn = [], []
    for key, line in step_logs.each(step_logs.log(seed, STEPS)):
        state.feed([line])
        lane = lanes.setdefault(key, len(lanes))
        told.append([feed.events([line]), lane, line["t"]])
        drawn.append(shown(state.of(*key)))
    for number, (on_page, in_terminal) in enumerate(zip(page.evaluate(LIVE, told), drawn, strict=True)):
        assert on_page == in_terminal, f"line {number}"


@pytest.mark.parametrize("seed", SEEDS)
def test_a_replay_shows_the_same_as_the_terminal_at_every_step(page: Any, seed: int, tmp_path: Path) -> None:
    lines = step_logs.log(seed, STEPS)
    (tmp_path / "steps-only.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    path = replay.write_timeline_page(tmp_path)
    assert path
    page.goto(path.as_uri())
    state = LiveState()
    drawn: dict[tuple[str, str], list[Any]] = {}
    for key, line in step_logs.each(lines):
        state.feed([line])
        steps = drawn.setdefault(key, [])
        if line["kind"] == "step":
            steps.append(shown(state.of(*key)))
        elif steps:  # after the last step, what came then is shown too; its rate is that of the step
            last = {**shown(state.of(*key)), "rate": steps[-1]["rate"]}
            after = [later for other, later in step_logs.each(lines) if other == key and later["t"] > line["t"]]
            if all(later["kind"] == "change" for later in after):
                steps[-1] = last
    for on_page, in_terminal in zip(page.evaluate(REPLAYED), drawn.values(), strict=True):
        for number, (one, other) in enumerate(zip(on_page, in_terminal, strict=True), 1):
            assert one == other, f"step {number}"
