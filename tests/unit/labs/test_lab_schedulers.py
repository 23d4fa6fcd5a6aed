"""Lab 06 without a server: its phases on each profile, and what its clients count in a step log."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
from checkout import ROOT
from click.testing import CliRunner, Result
from lab_errors import is_lab_error

from labctl.cli.main import cli
from labsched.step import Step

LAB = ROOT / "labs" / "06-modern-schedulers"


def of(script: str, name: str) -> Any:
    return runpy.run_path(str(LAB / script))[name]


def step(*rows: tuple[str, str, int, int], waiting: tuple[str, ...] = ()) -> Step:
    """A step of (id, letter, tokens computed, tokens made) for each request, while those others waited."""
    ids, letters, tokens, made = zip(*rows, strict=True)
    return Step(ids, 0.0, 1.0, phase="".join(letters), tokens=tokens, made=list(made), waiting=waiting)


@pytest.fixture(autouse=True)
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABS_ROOT", str(ROOT))
    monkeypatch.setenv("LABS_CACHE", str(tmp_path / "cache"))


def invoked(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments)


def test_a_prompt_counts_as_computed_in_all_its_pieces_and_what_is_decoded_does_not() -> None:
    steps = [step(("a", "p", 60, 0)), step(("a", "p", 4, 1), ("b", "d", 1, 1)), step(("a", "d", 1, 1))]
    assert of("prefix.py", "counted")(steps, 128) == {"asked": 128, "computed": 64, "hit_rate": 0.5}


def test_tenants_are_compared_for_as_long_as_both_wait() -> None:
    tenants = {"f1": "flood", "f2": "flood", "f3": "flood", "l1": "light", "l2": "light"}
    steps = [
        step(("f1", "p", 16, 1), ("f2", "p", 16, 1), waiting=("f3", "l1", "l2")),  # 2 * (16 + 2)
        step(("f2", "d", 1, 1), ("l1", "p", 16, 1), waiting=("f3", "l2")),  # 2 to 16 + 2
        step(("l1", "d", 1, 1), ("l2", "p", 16, 1), waiting=("f3",)),  # the light one waits no more
        step(("f3", "p", 16, 1)),
    ]
    found = of("tenants.py", "counted")(steps, tenants)
    assert found["served"] == {"flood": [0, 36, 38], "light": [0, 0, 18]}
    assert found["behind"] == pytest.approx((38 - 18) / 2 / 112)
    assert found["apart"] == pytest.approx(36 / 2 / 112)


def test_steps_for_a_token_are_those_of_each_request_by_itself() -> None:
    class Record:
        id = "a"

    steps = [step(("a", "p", 5, 1)), step(("a", "d", 5, 4), ("b", "d", 1, 1)), step(("a", "d", 5, 2))]
    assert of("speculation.py", "counted")(steps, [Record()])["steps_per_token"] == pytest.approx(2 / 6)


# -- on the gpu profile ------------------------------------------------------------------------------------------------

TENSORRT_LLM = ("--profile", "gpu", "--set", "engine=tensorrt-llm")


@pytest.mark.parametrize("setting", ["speculation=draft", "speculation=prompt_lookup", "scheduling=fair"])
def test_what_needs_engines_that_labctl_does_not_build_is_refused_by_name(setting: str) -> None:
    done = invoked("render", "modern", *TENSORRT_LLM, "--set", setting)
    is_lab_error(done.exception, "settings-unusable", setting.partition("=")[0])
