"""Settings: what --set accepts, and what it says when it does not."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest
from lab_errors import lab_error
from pydantic import Field

from labctl.lab import Lab, LabSettings, setting, setting_of
from labctl.settings import in_force, parse_assignments, resolve


class Declared(LabSettings):
    kv_cache: bool = setting(True, "cache")
    max_batch_size: int = setting(8, "batch", ge=1, le=64)
    strategy: Literal["direct", "oldest"] = setting("direct", "")
    lengths: list[Annotated[int, Field(ge=1)]] = setting([8, 32], "lengths")
    budget: float = setting(0.5, "share", gpu=0.9, ge=0, le=1)
    note: str | None = setting(None, "text")
    instead: int = setting(64, "", when={"kv_cache": False}, instead="note")


class Other(Declared):
    max_batch_size: int = setting_of(Declared, "max_batch_size", 2, gpu=4)


LAB = Lab(short="demo", title="", summary="", settings=Declared, serves=())


@pytest.mark.parametrize(
    ("profile", "layers", "name", "value"),
    [
        ("cpu", [], "budget", 0.5),
        ("gpu", [], "budget", 0.9),
        ("cpu", [{"max_batch_size": 4}, {"max_batch_size": "16"}], "max_batch_size", 16),
        *(("cpu", [{"kv_cache": text}], "kv_cache", text in ("ON", "yes")) for text in ("false", "ON", "0", "yes")),
        *(("cpu", [{"max_batch_size": bound}], "max_batch_size", bound) for bound in (1, 64)),
        ("cpu", [{"lengths": "8, 128"}], "lengths", [8, 128]),
        ("cpu", [{"note": ""}], "note", None),
        ("cpu", [{"kv_cache": "no"}], "instead", 64),
    ],
)
def test_a_setting_has_the_last_value_that_was_given_and_the_profiles_default(
    profile: str, layers: list[dict[str, Any]], name: str, value: Any
) -> None:
    assert in_force(LAB, profile, resolve(LAB, profile, *layers))[name] == value


def test_a_setting_whose_condition_does_not_hold_is_not_in_force() -> None:
    assert "instead" not in in_force(LAB, "cpu", resolve(LAB, "cpu"))


def test_all_problems_are_told_at_once_with_the_good_values() -> None:
    given = {"max_batch_sise": 3, "max_batch_size": 99, "strategy": "x", "budget": "nan", "lengths": ""}
    with lab_error("settings-unusable") as caught:
        resolve(LAB, "cpu", given)
    told = {line.partition(":")[0]: line for line in caught.value.details}
    good = {"max_batch_sise": "'max_batch_size'", "max_batch_size": "from 1 to 64", "strategy": "direct, oldest"}
    assert all(value in told[name] for name, value in {**good, "budget": "'nan'"}.items())
    assert "lengths" in told, "an empty value means nothing there"


def test_a_setting_that_means_nothing_beside_the_others_is_refused_with_what_it_needs() -> None:
    with lab_error("settings-unusable", "kv_cache=false", "here it is note"):
        resolve(LAB, "cpu", {"instead": 8})


def test_a_refusal_names_what_is_wrong_in_fewer_than_twelve_lines() -> None:
    with lab_error("settings-unusable", "22 more", "labctl list demo") as caught:
        resolve(LAB, "cpu", {f"no_such_{n}": 1 for n in range(30)}, what="lab demo")
    assert len(str(caught.value).splitlines()) < 12


@pytest.mark.parametrize("digits", [400, 5000])
def test_a_number_of_hundreds_of_digits_is_refused(digits: int) -> None:
    with lab_error("settings-unusable", "a whole number from 1 to 64"):
        resolve(LAB, "cpu", {"max_batch_size": "9" * digits})


def test_a_setting_of_another_lab_keeps_its_limits_and_help_with_another_default() -> None:
    declared, other = LAB.declared["max_batch_size"], Lab(short="", title="", summary="", settings=Other, serves=())
    assert other.declared["max_batch_size"].default == {"cpu": 2, "gpu": 4}
    assert other.declared["max_batch_size"].describe() == declared.describe() == "a whole number from 1 to 64"


def test_an_assignment_needs_an_equals_sign() -> None:
    assert parse_assignments(("a=b=c", "note=")) == {"a": "b=c", "note": ""}
    with lab_error("settings-not-pairs"):
        parse_assignments(("kv_cache",))
