"""The settings that a lab declares and ``--set key=value`` changes: types, bounds, defaults, good error messages."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, model_validator

from labctl.manifest.references import as_text, holds
from labkit.errors import LabError

_TRUE = {"true", "yes", "on", "1"}
_FALSE = {"false", "no", "off", "0"}
MOST_LINES = 8  # of a refusal: it names what is wrong, `labctl list LAB` what there is


def _lists(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {key: item if isinstance(item, list) else [item] for key, item in value.items()}


# Values of settings under which something holds: {engine: openvino}, or any of several: {engine: [openvino, onnx]}.
Condition = Annotated[dict[str, list[Any]], BeforeValidator(_lists)]


class Setting(BaseModel):
    """One setting of a lab.

    ``scope``: a ``stack`` setting changes what is served; a ``run`` setting is read by the lab's clients alone.
    ``default`` may hold one value per profile ({cpu: ..., gpu: ...}). ``only`` names the values of other settings
    with which this one means anything ({engine: openvino}); with others it is left out, and refused when given.
    ``instead`` is the setting that a person means who gives it then.
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
    only: Condition = {}
    instead: str = ""

    @model_validator(mode="after")
    def _consistent(self) -> Setting:
        if (self.type == "choice") != bool(self.choices):
            raise ValueError("'choices' belongs to type choice, and type choice needs it")
        if isinstance(self.default, dict) and not {"cpu"} <= self.default.keys() <= {"cpu", "gpu"}:
            raise ValueError("a default by profile is {cpu: ..., gpu: ...}")
        if self.instead and not self.only:
            raise ValueError("'instead' belongs to a setting with 'only'")
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
        if isinstance(number, float) and not math.isfinite(number):
            raise ValueError(f"'{text}' is not {self.describe()}")
        if (self.min is not None and number < self.min) or (self.max is not None and number > self.max):
            raise ValueError(f"{text} is out of range: {self.describe()}")
        return number

    def values(self) -> list[str]:
        """Every value of a choice or a bool, as a manifest writes it; none of the other types."""
        return ["true", "false"] if self.type == "bool" else self.choices

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
    declared: Mapping[str, Setting], profile: str, *layers: Mapping[str, Any], what: str = "LAB"
) -> dict[str, Any]:
    """Every declared setting with its value: the profile's default, then each layer in turn.

    Args:
        what: whose settings they are, in a refusal: ``lab batching``, ``stack static-batching``.

    Raises:
        LabError: unknown keys and bad values, each with what would be good.
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
    idle = {key for key, setting in declared.items() if not holds(setting.only, values)}
    given = {key for layer in layers for key in layer}
    problems += [_out_of_place(key, declared) for key in declared if key in idle & given]
    if problems:
        more = [f"and {len(problems) - MOST_LINES} more"] if len(problems) > MOST_LINES else []
        raise LabError(
            f"{'a setting' if len(problems) == 1 else 'some settings'} of {what} cannot be used",
            "",
            f"labctl list {what.rpartition(' ')[2]} shows the settings",
            details=[*problems[:MOST_LINES], *more],
        )
    return {key: value for key, value in values.items() if key not in idle}


def _out_of_place(key: str, declared: Mapping[str, Setting]) -> str:
    """Why a setting that was given means nothing here, and which one is meant."""
    setting = declared[key]
    needs = " and ".join(f"{other}={' or '.join(map(as_text, good))}" for other, good in setting.only.items())
    meant = f"; here it is {setting.instead} ({declared[setting.instead].help})" if setting.instead else ""
    return f"{key}: it means something only with {needs}{meant}"


def parse_assignments(items: tuple[str, ...]) -> dict[str, str]:
    """``("key=value", ...)`` as a mapping; a later one wins. Raises LabError for an item without '='."""
    bad = [item for item in items if "=" not in item or not item.split("=", 1)[0]]
    if bad:
        raise LabError("--set takes key=value", f"got: {', '.join(bad)}", "for example --set kv_cache=false")
    return dict(item.split("=", 1) for item in items)


def plain(number: float) -> str:
    """1,000,000 and 0.01, never 1e+06."""
    return f"{number:,.0f}" if number == int(number) else f"{number:,}"
