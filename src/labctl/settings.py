"""Settings with their values: the lab's defaults, a stack's, and what ``--set key=value`` says."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from labctl.lab import Lab, LabSettings, Setting
from labkit.errors import LabError

MOST_LINES = 8  # of faults in a refusal; `labctl list LAB` shows the valid settings


def resolve(lab: Lab, profile: str, *layers: Mapping[str, Any], what: str = "LAB") -> LabSettings:
    """Give every setting its value: the profile's default, then each layer in turn.

    Args:
        what: whose settings they are, in a refusal: ``lab batching``, ``stack static-batching``.

    Raises:
        LabError: unknown keys and bad values, each with what would be good.
    """
    declared = lab.declared
    values = {key: setting.default[profile] for key, setting in declared.items()}
    problems = []
    given = {key: value for layer in layers for key, value in layer.items()}
    for key, value in given.items():
        if key in declared:
            values[key] = declared[key].given(value)
        else:
            near = difflib.get_close_matches(key, declared, n=1)
            problems.append(f"{key}: unknown" + (f"; did you mean '{near[0]}'?" if near else ""))
    try:
        chosen = lab.settings.model_validate(values)
    except ValidationError as error:
        bad = list(dict.fromkeys(str(item["loc"][0]) for item in error.errors()))
        problems += [f"{key}: '{format_setting(given.get(key))}' is not {declared[key].describe()}" for key in bad]
    else:
        idle = declared.keys() - in_force(lab, profile, chosen).keys()
        problems += [_out_of_place(key, declared) for key in given if key in idle]
    if problems:
        more = [f"and {len(problems) - MOST_LINES} more"] if len(problems) > MOST_LINES else []
        raise LabError(
            f"{'a setting' if len(problems) == 1 else 'some settings'} of {what} cannot be used",
            "",
            f"labctl list {what.rpartition(' ')[2]} shows the settings",
            details=[*problems[:MOST_LINES], *more],
            code="settings-unusable",
        )
    return chosen


def in_force(lab: Lab, profile: str, chosen: LabSettings) -> dict[str, Any]:
    """Return the settings that mean something beside the others, by name."""
    values = {key: getattr(chosen, key) for key in lab.declared}
    return {key: value for key, value in values.items() if holds(lab.declared[key], values, profile)}


def holds(setting: Setting, values: Mapping[str, Any], profile: str) -> bool:
    """Say whether a setting means something with these values of others, typed or as ``--set`` writes them."""
    here = {**values, "profile": profile}
    return all(format_setting(here.get(other)) in map(format_setting, good) for other, good in setting.when.items())


def _out_of_place(key: str, declared: Mapping[str, Setting]) -> str:
    """Why a given setting means nothing here, and which setting to use instead."""
    setting = declared[key]
    needs = " and ".join(f"{other}={' or '.join(map(format_setting, good))}" for other, good in setting.when.items())
    meant = f"; here it is {setting.instead} ({declared[setting.instead].help})" if setting.instead else ""
    return f"{key}: it means something only with {needs}{meant}"


def parse_assignments(items: Sequence[str]) -> dict[str, str]:
    """``("key=value", ...)`` as a mapping; a later one wins. Raises LabError for an item without '='."""
    bad = [item for item in items if "=" not in item or not item.split("=", 1)[0]]
    if bad:
        raise LabError(
            "--set takes key=value",
            f"got: {', '.join(bad)}",
            "for example --set kv_cache=false",
            code="settings-not-pairs",
        )
    return dict(item.split("=", 1) for item in items)


def format_setting(value: Any) -> str:
    """Write a value as ``--set`` takes it: ``true``, ``8``, ``8,32``; None is empty."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
