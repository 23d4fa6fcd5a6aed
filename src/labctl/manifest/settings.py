"""The settings that a lab declares and ``--set key=value`` changes: types, bounds, defaults, good error messages."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, model_validator

from labkit.errors import LabError

_TRUE = {"true", "yes", "on", "1"}
_FALSE = {"false", "no", "off", "0"}
MOST_LINES = 8  # of faults in a refusal; `labctl list LAB` shows the valid settings
REFERENCE = re.compile(r"\{([^{}\s]+)\}")
CHOICE = {"setting", "map"}  # the keys of a value that depends on a setting


def _lists(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {key: item if isinstance(item, list) else [item] for key, item in value.items()}


# Values of settings under which something holds: {engine: openvino}, or any of several: {engine: [openvino, onnx]}.
# ``profile`` stands among the settings: {profile: gpu, engine: openvino}.
Condition = Annotated[dict[str, list[Any]], BeforeValidator(_lists)]


class Setting(BaseModel):
    """One setting of a lab.

    ``scope``: a ``stack`` setting changes what is served; a ``run`` setting is read by the lab's clients alone.
    ``default`` may hold one value per profile ({cpu: ..., gpu: ...}). ``when`` names the values of other settings
    with which this one has a meaning ({engine: openvino}); with other values it is left out, and refused if given.
    ``instead`` is the setting to suggest in that case.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    type: Literal["int", "float", "bool", "str", "choice", "source", "intlist"]
    default: Any
    help: str
    choices: list[str] = []
    min: float | None = None
    max: float | None = None
    optional: bool = False
    scope: Literal["stack", "run"] = "stack"
    when: Condition = {}
    instead: str = ""

    @model_validator(mode="after")
    def _consistent(self) -> Setting:
        if (self.type == "choice") != bool(self.choices):
            raise ValueError("'choices' belongs to type choice, and type choice needs it")
        if isinstance(self.default, dict) and not {"cpu"} <= self.default.keys() <= {"cpu", "gpu"}:
            raise ValueError("a default by profile is {cpu: ..., gpu: ...}")
        if self.instead and not self.when:
            raise ValueError("'instead' belongs to a setting with 'when'")
        for profile in ("cpu", "gpu"):
            self.parse(self.default_for(profile))
        return self

    def default_for(self, profile: str) -> Any:
        if isinstance(self.default, dict):
            return self.default.get(profile, self.default.get("cpu"))
        return self.default

    def parse(self, value: Any) -> Any:
        """The value in its own type. Raises ValueError with what would be good."""
        text = str(value).strip()
        if not text or value is None:
            if self.optional:
                return ""
            raise ValueError(f"must not be empty ({self.describe()})")
        match self.type:
            case "bool":
                if text.lower() not in _TRUE | _FALSE:
                    raise ValueError(f"'{text}' is not one of: true, false")
                return text.lower() in _TRUE
            case "int" | "float":
                return self._number(text)
            case "choice":
                if text not in self.choices:
                    raise ValueError(f"'{text}' is not one of: {', '.join(self.choices)}")
                return text
            case "intlist":
                items = value if isinstance(value, list) else text.split(",")
                return [self._number(str(item).strip()) for item in items]
        return text

    def _number(self, text: str) -> int | float:
        try:
            number = float(text) if self.type == "float" else int(text)
            if isinstance(number, float) and not math.isfinite(number):
                raise ValueError
        except ValueError:
            raise ValueError(f"'{text}' is not {self.describe()}") from None
        if (self.min is not None and number < self.min) or (self.max is not None and number > self.max):
            raise ValueError(f"{text} is out of range: {self.describe()}")
        return number

    def values(self) -> list[str]:
        """Every value of a choice or a bool, as a manifest writes it; none of the other types."""
        return ["true", "false"] if self.type == "bool" else self.choices

    def describe(self) -> str:
        """The valid values, in words."""
        kind = {
            "choice": f"one of: {', '.join(self.choices)}",
            "bool": "true or false",
            "source": "a model source: shipped:<name>, random:<shape>, hub:<id>@<revision> or a folder",
            "str": "a text",
            "int": "a whole number",
            "float": "a number",
            "intlist": "whole numbers with commas",
        }[self.type]
        if self.min is not None and self.max is not None:
            return f"{kind} from {format_plain_number(self.min)} to {format_plain_number(self.max)}"
        if self.min is not None:
            return f"{kind}, at least {format_plain_number(self.min)}"
        if self.max is not None:
            return f"{kind}, at most {format_plain_number(self.max)}"
        return kind


def resolve(
    declared: Mapping[str, Setting], profile: str, *layers: Mapping[str, Any], what: str = "LAB"
) -> dict[str, Any]:
    """Every declared setting with its value: the profile's default, then each layer in turn.

    ``what``: whose settings they are, in a refusal: ``lab batching``, ``stack static-batching``. Raises LabError:
    unknown keys and bad values, each with what would be good.
    """
    values = {key: setting.parse(setting.default_for(profile)) for key, setting in declared.items()}
    problems = []
    for layer in layers:
        for key, value in layer.items():
            if key not in declared:
                near = difflib.get_close_matches(key, declared, n=1)
                problems.append(f"{key}: unknown" + (f"; did you mean '{near[0]}'?" if near else ""))
                continue
            try:
                values[key] = declared[key].parse(value)
            except ValueError as error:
                problems.append(f"{key}: {error}")
    idle = {
        key for key, setting in declared.items() if not condition_holds(setting.when, {**values, "profile": profile})
    }
    given = {key for layer in layers for key in layer}
    problems += [_out_of_place(key, declared) for key in declared if key in idle & given]
    if problems:
        more = [f"and {len(problems) - MOST_LINES} more"] if len(problems) > MOST_LINES else []
        raise LabError(
            f"{'a setting' if len(problems) == 1 else 'some settings'} of {what} cannot be used",
            "",
            f"labctl list {what.rpartition(' ')[2]} shows the settings",
            details=[*problems[:MOST_LINES], *more],
            code="settings-unusable",
        )
    return {key: value for key, value in values.items() if key not in idle}


def _out_of_place(key: str, declared: Mapping[str, Setting]) -> str:
    """Why a given setting means nothing here, and which setting to use instead."""
    setting = declared[key]
    needs = " and ".join(f"{other}={' or '.join(map(format_setting, good))}" for other, good in setting.when.items())
    meant = f"; here it is {setting.instead} ({declared[setting.instead].help})" if setting.instead else ""
    return f"{key}: it means something only with {needs}{meant}"


def parse_assignments(items: tuple[str, ...], option: str = "--set") -> dict[str, str]:
    """``("key=value", ...)`` as a mapping; a later one wins. Raises LabError for an item without '='."""
    bad = [item for item in items if "=" not in item or not item.split("=", 1)[0]]
    if bad:
        raise LabError(
            f"{option} takes key=value",
            f"got: {', '.join(bad)}",
            f"for example {option} kv_cache=false",
            code="settings-not-pairs",
        )
    return dict(item.split("=", 1) for item in items)


def format_plain_number(number: float) -> str:
    """1,000,000 and 0.01, never 1e+06."""
    return f"{number:,.0f}" if number == int(number) else f"{number:,}"


def expand(value: Any, scope: Mapping[str, Any]) -> Any:
    """Fill the references of a value; a text that is nothing but one reference keeps the value's own type.

    ``{setting: x, map: {...}}`` becomes the map's entry for that setting's value.

    Raises LabError: ``scope`` has no such name, or the map no such value.
    """
    if isinstance(value, dict):
        if value.keys() == CHOICE:
            key, options = value["setting"], value["map"]
            setting = scope.get("profile" if key == "profile" else f"settings.{key}")
            chosen = [option for written, option in options.items() if same_value(setting, written)]
            if not chosen:
                raise LabError(
                    f"the manifest has no text for {key}={format_setting(setting)}",
                    f"it has: {', '.join(options)}",
                    code="manifest-text-missing",
                )
            return expand(chosen[0], scope)
        return {key: expand(item, scope) for key, item in value.items()}
    if isinstance(value, list):
        return [expand(item, scope) for item in value]
    if not isinstance(value, str):
        return value
    for name in REFERENCE.findall(value):
        if name not in scope:
            raise LabError(
                f"a manifest refers to '{{{name}}}'",
                "that name is not known at that point of the stack",
                code="manifest-name-unknown",
            )
    if match := REFERENCE.fullmatch(value):
        return scope[match[1]]
    return REFERENCE.sub(lambda match: format_setting(scope[match[1]]), value)


def same_value(value: Any, written: Any) -> bool:
    """Whether a setting has the value that ``when`` or ``map`` of a manifest names."""
    return format_setting(value) == format_setting(written)


def condition_holds(condition: Mapping[str, Sequence[Any]], settings: Mapping[str, Any]) -> bool:
    """Whether every setting of ``condition`` has one of its values."""
    return all(any(same_value(settings.get(key), value) for value in values) for key, values in condition.items())


def format_setting(value: Any) -> str:
    """A value as a manifest writes it: ``true``, ``8``, ``8,32``."""
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
