"""Settings against each other, and every value that a condition, a map, a stack or a phase names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from labctl.manifest.references import CHOICE, as_text
from labctl.manifest.schema import FILLED, Lab, Stack
from labctl.manifest.settings import Setting


def problems(lab: Lab) -> Iterator[str]:
    for key, setting in lab.settings.items():
        yield from _condition(lab, f"settings.{key}.only", setting.only)
        if key in setting.only:
            yield f"settings.{key}.only.{key}: a setting cannot depend on itself"
        if setting.instead and setting.instead not in lab.settings:
            yield f"settings.{key}.instead: '{setting.instead}' is not a setting of this lab"
    for name, stack in lab.stacks.items():
        where = f"stacks.{name}"
        yield from _values(lab, f"{where}.settings", stack.settings)
        for key, variant in stack.variants.items():
            yield from _condition(lab, f"{where}.variants.{key}.when", variant.when)
        for layer, content in layers(where, stack):
            for edit in content.replacements:
                yield from _condition(lab, f"{layer}.replacements.when", edit.when)
            for path, choice in _choices(layer, content.model_dump(include={*FILLED, "artifacts", "probes"})):
                yield from _map(lab, path, choice)
    for phase in lab.run.phases if lab.run else ():
        yield from _values(lab, f"run.phases.{phase.name}.set", phase.set)


def _values(lab: Lab, where: str, values: Mapping[str, Any]) -> Iterator[str]:
    for key, value in values.items():
        if key not in lab.settings:
            yield f"{where}.{key}: not a setting of this lab"
            continue
        try:
            lab.settings[key].parse(value)
        except ValueError as error:
            yield f"{where}.{key}: {error}"


def _condition(lab: Lab, where: str, condition: Mapping[str, list[Any]]) -> Iterator[str]:
    for key, wanted in condition.items():
        if key not in lab.settings:
            yield f"{where}.{key}: not a setting of this lab"
            continue
        for value in wanted:
            yield from _written(f"{where}.{key}", lab.settings[key], value)


def _written(where: str, setting: Setting, value: Any) -> Iterator[str]:
    """A value to compare with must be a good one, written as settings' values are: ``true``, not ``yes``."""
    try:
        text = as_text(setting.parse(value))
    except ValueError as error:
        yield f"{where}: {error}"
        return
    if text != as_text(value):
        yield f"{where}: '{as_text(value)}' is written {text}"


def _choices(where: str, value: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every ``{setting: x, map: {...}}`` below ``value``, with its path."""
    if isinstance(value, dict):
        if value.keys() >= CHOICE or ("map" in value and "setting" not in value):
            yield where, value
        for key, item in value.items():
            yield from _choices(f"{where}.{key}", item)
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _choices(f"{where}.{number}", item)


def _map(lab: Lab, where: str, choice: Mapping[str, Any]) -> Iterator[str]:
    key, options = choice.get("setting"), choice["map"]
    if choice.keys() != CHOICE or not isinstance(options, dict):
        yield f"{where}: a choice is {{setting: NAME, map: {{VALUE: ...}}}}"
        return
    if key not in lab.settings:
        yield f"{where}.setting: '{key}' is not a setting of this lab"
        return
    setting = lab.settings[key]
    for value in options:
        yield from _written(f"{where}.map", setting, value)
    given = {as_text(value) for value in options}
    missing = [value for value in setting.values() if value not in given]
    if missing:
        yield f"{where}.map: nothing for {key}={' or '.join(missing)}"


def layers(where: str, stack: Stack) -> Iterator[tuple[str, Any]]:
    """The stack itself and what may be laid over it, each with its key."""
    yield where, stack
    for profile, overlay in stack.profiles.items():
        yield f"{where}.profiles.{profile}", overlay
    for name, variant in stack.variants.items():
        yield f"{where}.variants.{name}", variant
