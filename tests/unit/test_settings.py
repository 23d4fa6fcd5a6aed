"""Settings: what --set accepts, and what it says when it does not."""

from __future__ import annotations

import pytest
from lab_errors import lab_error

from labctl.manifest.settings import Setting, parse_assignments, resolve

DECLARED = {
    "kv_cache": Setting(type="bool", default=True, help="cache"),
    "max_batch_size": Setting(type="int", default=8, min=1, max=64, help="batch"),
    "strategy": Setting(type="choice", choices=["direct", "oldest"], default="direct", help=""),
    "lengths": Setting(type="intlist", default=[8, 32], min=1, help="lengths"),
    "budget": Setting(type="float", default={"cpu": 0.5, "gpu": 0.9}, min=0, max=1, help="share"),
    "note": Setting(type="str", default="", optional=True, help="text"),
}


def test_defaults_follow_the_profile() -> None:
    assert resolve(DECLARED, "cpu")["budget"] == 0.5
    assert resolve(DECLARED, "gpu")["budget"] == 0.9


def test_later_layers_win() -> None:
    assert resolve(DECLARED, "cpu", {"max_batch_size": 4}, {"max_batch_size": "16"})["max_batch_size"] == 16


@pytest.mark.parametrize(("text", "value"), [("false", False), ("ON", True), ("0", False), ("yes", True)])
def test_booleans_are_read_as_people_write_them(text: str, value: bool) -> None:
    assert resolve(DECLARED, "cpu", {"kv_cache": text})["kv_cache"] is value


def test_lists_of_numbers() -> None:
    assert resolve(DECLARED, "cpu", {"lengths": "8, 128"})["lengths"] == [8, 128]


def test_all_problems_are_told_at_once_with_the_good_values() -> None:
    with lab_error("settings-unusable") as caught:
        resolve(DECLARED, "cpu", {"max_batch_sise": 3, "max_batch_size": 99, "strategy": "x", "budget": "nan"})
    text = str(caught.value)
    assert "max_batch_sise: unknown; did you mean 'max_batch_size'?" in text
    assert "from 1 to 64" in text
    assert "direct, oldest" in text
    assert "'nan' is not a number" in text


def test_an_assignment_needs_an_equals_sign() -> None:
    assert parse_assignments(("a=b=c", "note=")) == {"a": "b=c", "note": ""}
    with lab_error("settings-not-pairs"):
        parse_assignments(("kv_cache",))


def test_an_empty_value_is_refused_unless_it_means_something() -> None:
    assert resolve(DECLARED, "cpu", {"note": ""})["note"] == ""
    with lab_error("settings-unusable"):
        resolve(DECLARED, "cpu", {"max_batch_size": ""})


def test_a_default_that_is_not_good_is_refused_with_the_manifest() -> None:
    with pytest.raises(ValueError, match="out of range"):
        Setting(type="int", default=0, min=1, help="")


ENGINE = Setting(type="choice", choices=["fast", "plain"], default="plain", help="")
SEQUENCES = Setting(type="int", default=16, help="sequences in the running batch")
LIMIT = Setting(type="int", default=64, when={"engine": ["fast"]}, instead="sequences", help="")


def test_a_setting_that_means_nothing_here_names_the_one_that_is_meant() -> None:
    with lab_error("settings-unusable", "limit: ", "engine=fast"):
        resolve({"engine": ENGINE, "sequences": SEQUENCES, "limit": LIMIT}, "cpu", {"limit": 8})


def test_a_condition_on_a_bool_holds() -> None:
    declared = {
        "on": Setting(type="bool", default=True, help=""),
        "n": Setting(type="int", default=1, when={"on": [True]}, help=""),
    }
    assert resolve(declared, "cpu") == {"on": True, "n": 1}
    assert resolve(declared, "cpu", {"on": "no"}) == {"on": False}


def test_a_refusal_names_what_is_wrong_in_fewer_than_twelve_lines() -> None:
    with lab_error("settings-unusable", "22 more", "labctl list demo") as caught:
        resolve(DECLARED, "cpu", {f"no_such_{n}": 1 for n in range(30)}, what="lab demo")
    assert len(str(caught.value).splitlines()) < 12
