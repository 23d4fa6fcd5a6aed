"""The concept drawings show what the scheduler decides, and docs/images has what the script draws."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from checkout import ROOT
from PIL import Image, ImageChops, ImageStat

from labsched.policy import Policy


@pytest.fixture(scope="module")
def drawing() -> Iterator[ModuleType]:
    sys.path.insert(0, str(ROOT / "scripts"))
    import draw_concepts

    yield draw_concepts
    sys.path.remove(str(ROOT / "scripts"))


@pytest.fixture(scope="module")
def drawn(drawing: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("drawn")
    drawing.main(folder)
    return folder


def test_every_drawing_of_the_docs_is_one_that_the_script_draws(drawn: Path) -> None:
    kept = {path.name for path in (ROOT / "docs" / "images").glob("concept-*.png")}
    assert kept == {path.name for path in drawn.iterdir()}
    for name in kept:
        old, new = (Image.open(folder / name).convert("RGB") for folder in (ROOT / "docs" / "images", drawn))
        assert old.size == new.size, name
        assert max(ImageStat.Stat(ImageChops.difference(old, new)).mean) < 0.5, f"{name}: scripts/draw_concepts.py"


def test_the_schedules_say_what_the_captions_say(drawing: ModuleType) -> None:
    static, inflight = drawing.static_batching(), drawing.inflight_batching()
    assert (len(static), len(inflight)) == (17, 11)
    assert [step.waiting for step in static[2:11]] == [["E", "F"]] * 9, "no request joins a static batch"
    kept, evicting = (
        drawing.promised_blocks(policy) for policy in (Policy.GUARANTEED_NO_EVICT, Policy.MAX_UTILIZATION)
    )
    assert not any(step.evicted for step in kept) and [step.evicted for step in evicting].count(["C"]) == 1
    assert sum(share.promised for share in kept[0].shares) == drawing.BLOCKS
    assert sum(share.in_use for share in kept[0].shares) == drawing.BLOCKS // 2
    longest = [max(sum(share.tokens for share in step.shares) for step in drawing.chunks(budget)) for budget in (64, 8)]
    assert longest == [25, 8]
    assert [found.tokens for found in drawing.prefix_tree()] == [0, 8, 12, 0]
