"""Alerting rules of a Prometheus rule file, played on a recording: which alerts fire, and when."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import promql_parser as ast
import yaml

from labkit.errors import LabError
from labkit.promql.evaluate import evaluate, parse
from labkit.promql.samples import NAME, Labels, Recording, without
from labkit.strict_yaml import parse_yaml

KEYS = {"alert", "expr", "for", "labels", "annotations"}
FORM = "groups: [{name: ..., rules: [{alert: ..., expr: ..., for: 1m}]}]"


@dataclass(frozen=True)
class Rule:
    """One alert. ``seconds``: its ``for``, for which the expression must have given a value at each evaluation."""

    alert: str
    expression: ast.Expr
    seconds: float

    @property
    def metrics(self) -> set[str]:
        """The names of the metrics that it asks for."""
        found: set[str] = set()

        def note(part: ast.Expr) -> None:
            selector = part.vector_selector if isinstance(part, ast.MatrixSelector) else part
            if isinstance(selector, ast.VectorSelector) and selector.name:
                found.add(selector.name)

        ast.walk(self.expression, note)
        return found


class Firing(NamedTuple):
    """An alert that begins to fire, at a time in seconds, for the series with these labels."""

    time: float
    alert: str
    labels: Labels


def read_rules(text: str) -> list[Rule]:
    """The alerts of a rule file. Raises LabError: it is not YAML, not of that form, or has what is not known here."""
    try:
        data: Any = parse_yaml(text)
        rules = [rule for group in data["groups"] for rule in group["rules"]]
        if unknown := sorted({key for rule in rules for key in rule} - KEYS):
            raise LabError(f"{unknown[0]} is not known in a rule", f"these keys are: {', '.join(sorted(KEYS))}", FORM)
        found = [Rule(str(rule["alert"]), parse(str(rule["expr"])), _seconds(rule.get("for", 0))) for rule in rules]
    except yaml.YAMLError as error:
        raise LabError("the rules are not YAML", " ".join(str(error).split()), FORM) from error
    except (TypeError, KeyError, AttributeError) as error:
        raise LabError("the file is no Prometheus rule file", f"it lacks {error}", FORM) from error
    if not found:
        raise LabError("the file has no alert", "groups are empty", FORM)
    return found


def _seconds(text: object) -> float:
    try:
        return ast.parse_duration(str(text)).total_seconds() if text else 0.0
    except ValueError as error:
        raise LabError(f"for: {text} is no duration", str(error), "30s, 5m, 1h") from error


def firings(rules: list[Rule], recording: Recording, begin: float, end: float, every: float) -> Iterator[Firing]:
    """Each alert when it begins to fire, in order of time. ``every``: seconds between evaluations.

    A series is pending from the first evaluation at which the expression gives a value for its labels, and fires at the
    first one that is ``for`` later, if each in between gave one too.
    """
    since: dict[tuple[int, Labels], float] = {}
    fired: set[tuple[int, Labels]] = set()
    for number in range(int((end - begin) / every) + 1):
        now = begin + number * every
        active: dict[tuple[int, Labels], float] = {}
        for index, rule in enumerate(rules):
            value = evaluate(rule.expression, recording, now)
            for labels in value if isinstance(value, dict) else [()]:  # a number is a vector without labels
                key = index, without(labels, [NAME])
                active[key] = since.get(key, now)
                if now - active[key] >= rule.seconds and key not in fired:
                    fired.add(key)
                    yield Firing(now, rule.alert, key[1])
        fired &= active.keys()
        since = active
