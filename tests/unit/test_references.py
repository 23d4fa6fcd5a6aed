"""The grammar of ``{...}`` in a manifest, and the one comparison of a setting's value."""

from __future__ import annotations

from typing import Any

import pytest
from lab_errors import lab_error

from labctl.manifest.settings import condition_holds, expand, same_value

SCOPE = {"settings.on": True, "settings.n": 3, "settings.sizes": [8, 32], "run_dir": "/run"}


def test_a_reference_alone_keeps_its_type_and_within_a_text_becomes_text() -> None:
    assert expand("{settings.n}", SCOPE) == 3
    assert expand("{run_dir}/x-{settings.on}-{settings.sizes}", SCOPE) == "/run/x-true-8,32"
    assert expand({"a": ["{settings.n}", "direct { }"]}, SCOPE) == {"a": [3, "direct { }"]}


@pytest.mark.parametrize("text", ["{artifacts.engine}", "{run_dirr}/x", "{settings.kv-cache}"])
def test_a_reference_to_nothing_is_told(text: str) -> None:
    with lab_error("manifest-name-unknown"):
        expand(text, SCOPE)


@pytest.mark.parametrize("key", [True, "true"])
def test_a_map_finds_the_value_of_its_setting_however_it_is_quoted(key: Any) -> None:
    assert expand({"setting": "on", "map": {key: "yes {settings.n}", "false": "no"}}, SCOPE) == "yes 3"


@pytest.mark.parametrize(
    ("value", "written", "equal"),
    [(True, "true", True), (False, "true", False), (3, "3", True), ([8, 32], "8,32", True), (0.5, 0.5, True)],
)
def test_values_are_compared_as_they_are_written(value: Any, written: Any, equal: bool) -> None:
    assert same_value(value, written) is equal


def test_a_condition_holds_with_any_of_its_values() -> None:
    assert condition_holds({"a": ["x", "y"], "b": [True]}, {"a": "y", "b": True})
    assert not condition_holds({"a": ["x"], "b": [True]}, {"a": "x", "b": False})
    assert condition_holds({}, {})


def test_a_choice_may_depend_on_the_profile() -> None:
    choice = {"setting": "profile", "map": {"cpu": "KIND_CPU", "gpu": "KIND_GPU"}}
    assert [expand(choice, {"profile": profile}) for profile in ("cpu", "gpu")] == ["KIND_CPU", "KIND_GPU"]
