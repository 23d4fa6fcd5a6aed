"""The settings that a lab declares and ``--set key=value`` changes: types, bounds, defaults, good error messages."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, model_validator

from labctl.errors import LabError

_TRUE = {"true", "yes", "on", "1"}
_FALSE = {"false", "no", "off", "0"}


class Setting(BaseModel):
    """One setting of a lab.

    ``scope``: a ``stack`` setting changes what is served; a ``run`` setting is read by the lab's clients alone.
    ``default`` may hold one value per profile ({cpu: ..., gpu: ...}). ``only`` names the values of other settings
    with which this one means anything ({engine: [openvino]}); with others it is left out, and refused when given.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    type: Literal["int", "float", "bool", "str", "choice", "source", "intlist"]
    default: Any
    help: str
    choices: list[str] = []
    aliases: dict[str, str] = {}
    min: float | None = None
    max: float | None = None
    optional: bool = False
    scope: Literal["stack", "run"] = "stack"
    only: dict[str, list[str]] = {}

    @model_validator(mode="after")
    def _consistent(self) -> Setting:
        if (self.type == "choice") != bool(self.choices):
            raise ValueError("'choices' belongs to type choice, and type choice needs it")
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
                return self._bool(text)
            case "int" | "float":
                return self._number(text)
            case "choice":
                text = self.aliases.get(text, text)
                if text not in self.choices:
                    raise ValueError(f"'{text}' is not one of: {', '.join(self.choices)}")
                return text
            case "intlist":
                items = value if isinstance(value, list) else text.split(",")
                return [self._number(str(item).strip()) for item in items]
        return text

    def _bool(self, text: str) -> bool:
        if text.lower() not in _TRUE | _FALSE:
            raise ValueError(f"'{text}' is not one of: true, false")
        return text.lower() in _TRUE

    def _number(self, text: str) -> int | float:
        kind: Callable[[str], int | float] = float if self.type == "float" else int
        try:
            number = kind(text)
        except ValueError:
            raise ValueError(f"'{text}' is not {self.describe()}") from None
        if not math.isfinite(number):
            raise ValueError(f"'{text}' is not {self.describe()}")
        if (self.min is not None and number < self.min) or (self.max is not None and number > self.max):
            raise ValueError(f"{text} is out of range: {self.describe()}")
        return number

    def describe(self) -> str:
        """What a good value is, in words."""
        match self.type:
            case "choice":
                return "one of: " + ", ".join(self.choices)
            case "bool":
                return "true or false"
            case "source":
                return "a model source: shipped:<name>, random:<shape>, hub:<id>@<revision> or a folder"
            case "str":
                return "a text"
        words = {"int": "a whole number", "float": "a number", "intlist": "whole numbers with commas"}[self.type]
        if self.min is not None and self.max is not None:
            return f"{words} from {plain(self.min)} to {plain(self.max)}"
        if self.min is not None:
            return f"{words}, at least {plain(self.min)}"
        return words if self.max is None else f"{words}, at most {plain(self.max)}"


def resolve(
    declared: Mapping[str, Setting], profile: str, *layers: Mapping[str, Any], what: str = "this lab"
) -> dict[str, Any]:
    """Every declared setting with its value: the profile's default, then each layer in turn.

    Raises:
        LabError: unknown keys and bad values, all of them, each with the good ones.
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
    idle = {key: other for key, setting in declared.items() if (other := _unmet(setting, values))}
    given = {key for layer in layers for key in layer}
    problems += [f"{key}: it means something only with {idle[key]}" for key in declared if key in idle and key in given]
    values = {key: value for key, value in values.items() if key not in idle}
    if problems:
        good = [f"  {key}: {setting.describe()}" for key, setting in declared.items() if key not in idle]
        raise LabError(
            f"some settings of {what} are not good",
            "",
            "correct --set; these are the settings it has:" + "".join(f"\n{line}" for line in good),
            details=problems,
        )
    return values


def _unmet(setting: Setting, values: Mapping[str, Any]) -> str:
    """The first condition of ``only`` that does not hold, in words; "" if all do."""
    for key, good in setting.only.items():
        if values[key] not in good:
            return f"{key}={' or '.join(good)}"
    return ""


def parse_assignments(items: tuple[str, ...]) -> dict[str, str]:
    """``("key=value", ...)`` as a mapping; a later one wins. Raises LabError for an item without '='."""
    bad = [item for item in items if "=" not in item or not item.split("=", 1)[0]]
    if bad:
        raise LabError("--set takes key=value", f"got: {', '.join(bad)}", "for example --set kv_cache=false")
    return dict(item.split("=", 1) for item in items)


def plain(number: float) -> str:
    """1,000,000 and 0.01, never 1e+06."""
    return f"{number:,.0f}" if number == int(number) else f"{number:,}"
