"""Settings: what --set accepts, what it says when it does not, and the grammar of ``{...}`` in a manifest."""

from __future__ import annotations

from typing import Any

import pytest
from lab_errors import lab_error

from labctl.manifest.settings import Setting, condition_holds, expand, parse_assignments, resolve, same_value

DECLARED = {
    "kv_cache": Setting(type="bool", default=True, help="cache"),
    "max_batch_size": Setting(type="int", default=8, min=1, max=64, help="batch"),
    "strategy": Setting(type="choice", choices=["direct", "oldest"], default="direct", help=""),
    "lengths": Setting(type="intlist", default=[8, 32], min=1, help="lengths"),
    "budget": Setting(type="float", default={"cpu": 0.5, "gpu": 0.9}, min=0, max=1, help="share"),
    "note": Setting(type="str", default="", optional=True, help="text"),
    "instead": Setting(type="int", default=64, when={"kv_cache": [False]}, instead="note", help=""),
}


@pytest.mark.parametrize(
    ("profile", "layers", "name", "value"),
    [
        ("cpu", [], "budget", 0.5),
        ("gpu", [], "budget", 0.9),
        ("cpu", [{"max_batch_size": 4}, {"max_batch_size": "16"}], "max_batch_size", 16),
        *(("cpu", [{"kv_cache": text}], "kv_cache", text in ("ON", "yes")) for text in ("false", "ON", "0", "yes")),
        *(("cpu", [{"max_batch_size": bound}], "max_batch_size", bound) for bound in (1, 64)),
        ("cpu", [{"lengths": "8, 128"}], "lengths", [8, 128]),
        ("cpu", [{"note": ""}], "note", ""),
        ("cpu", [{"kv_cache": "no"}], "instead", 64),
    ],
)
def test_a_setting_has_the_last_value_that_was_given_and_the_profiles_default(
    profile: str, layers: list[dict[str, Any]], name: str, value: Any
) -> None:
    assert resolve(DECLARED, profile, *layers)[name] == value


def test_a_setting_whose_condition_does_not_hold_is_not_there() -> None:
    assert "instead" not in resolve(DECLARED, "cpu")


def test_all_problems_are_told_at_once_with_the_good_values() -> None:
    with lab_error("settings-unusable") as caught:
        resolve(
            DECLARED,
            "cpu",
            {
                **{"max_batch_sise": 3, "max_batch_size": 99, "strategy": "x", "budget": "nan", "lengths": ""},
                "instead": 8,  # it means nothing here
            },
        )
    told = {line.partition(":")[0]: line for line in caught.value.details}
    good = {"max_batch_sise": "'max_batch_size'", "max_batch_size": "from 1 to 64", "strategy": "direct, oldest"}
    assert all(value in told[name] for name, value in {**good, "budget": "'nan'", "instead": "kv_cache=false"}.items())
    assert "lengths" in told, "an empty value means nothing there"


def test_a_refusal_names_what_is_wrong_in_fewer_than_twelve_lines() -> None:
    with lab_error("settings-unusable", "22 more", "labctl list demo") as caught:
        resolve(DECLARED, "cpu", {f"no_such_{n}": 1 for n in range(30)}, what="lab demo")
    assert len(str(caught.value).splitlines()) < 12


def test_an_assignment_needs_an_equals_sign() -> None:
    assert parse_assignments(("a=b=c", "note=")) == {"a": "b=c", "note": ""}
    with lab_error("settings-not-pairs"):
        parse_assignments(("kv_cache",))


def test_a_default_that_is_not_good_is_refused_with_the_manifest() -> None:
    with pytest.raises(ValueError, match="out of range"):
        Setting(type="int", default=0, min=1, help="")


SCOPE = {"settings.on": True, "settings.n": 3, "settings.sizes": [8, 32], "run_dir": "/run", "profile": "gpu"}


@pytest.mark.parametrize(
    ("value", "expanded"),
    [
        ("{settings.n}", 3),
        ("{run_dir}/x-{settings.on}-{settings.sizes}", "/run/x-true-8,32"),
        ({"a": ["{settings.n}", "direct { }"]}, {"a": [3, "direct { }"]}),
        ({"setting": "on", "map": {True: "yes {settings.n}", "false": "no"}}, "yes 3"),
        ({"setting": "on", "map": {"true": "yes {settings.n}", "false": "no"}}, "yes 3"),
        ({"setting": "profile", "map": {"cpu": "KIND_CPU", "gpu": "KIND_GPU"}}, "KIND_GPU"),
    ],
)
def test_a_reference_alone_keeps_its_type_and_within_a_text_becomes_text(value: Any, expanded: Any) -> None:
    assert expand(value, SCOPE) == expanded


@pytest.mark.parametrize("text", ["{artifacts.engine}", "{run_dirr}/x", "{settings.kv-cache}"])
def test_a_reference_to_nothing_is_told(text: str) -> None:
    with lab_error("manifest-name-unknown"):
        expand(text, SCOPE)


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
