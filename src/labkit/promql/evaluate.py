"""The value of a PromQL expression at a moment, on recorded samples.

What is here is what alerting rules need; anything else is refused by its name. ``promtool`` agrees on all of it
(tests/integration/test_promql_promtool.py).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable

import promql_parser as ast

from labkit.errors import LabError
from labkit.promql.functions import AGGREGATIONS, OVER_TIME
from labkit.promql.samples import NAME, Labels, Recording, Vector, as_labels, only, without

Value = float | Vector
ABSENT = "absent"


def _divide(one: float, other: float) -> float:
    if other:
        return one / other
    return math.nan if one == 0 or math.isnan(one) else math.copysign(math.inf, one) * math.copysign(1, other)


ARITHMETIC: dict[str, Callable[[float, float], float]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": _divide,
}
COMPARISON: dict[str, Callable[[float, float], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
    ">=": operator.ge,
    "<=": operator.le,
}
SETS = ("and", "or", "unless")
KNOWN = (*ARITHMETIC, *COMPARISON, *SETS, *AGGREGATIONS, *OVER_TIME, ABSENT)


def parse(text: str) -> ast.Expr:
    """The expression. Raises LabError: it is no PromQL, or uses what is not evaluated here."""
    try:
        expression = ast.parse(text)
    except ValueError as error:
        raise LabError("an expression is not PromQL", " ".join(str(error).split()), text) from error
    ast.walk(expression, _refuse)
    return expression


def _refuse(part: ast.Expr) -> None:
    """Raises LabError for an expression that :func:`evaluate` does not know, its parts aside."""
    match part:
        case ast.SubqueryExpr():
            raise _unknown("a subquery")
        case ast.StringLiteral():
            raise _unknown("a text")
        case ast.MatrixSelector():
            _refuse(part.vector_selector)
        case ast.VectorSelector() if part.offset or part.at:
            raise _unknown("offset" if part.offset else "@")
        case ast.VectorSelector() if part.matchers.or_matchers:
            raise _unknown("or between matchers")
        case ast.Call() if part.func.name not in (*OVER_TIME, ABSENT):
            raise _unknown(part.func.name)
        case ast.AggregateExpr() if str(part.op) not in AGGREGATIONS:
            raise _unknown(str(part.op))
        case ast.BinaryExpr():
            if str(part.op) not in KNOWN:
                raise _unknown(str(part.op))
            if part.modifier and part.modifier.card in (
                ast.VectorMatchCardinality.ManyToOne,
                ast.VectorMatchCardinality.OneToMany,
            ):
                raise _unknown("group_left and group_right")


def _unknown(name: str) -> LabError:
    return LabError(f"{name} is not evaluated here", f"these are: {' '.join(KNOWN)}", "write the rule with these")


def evaluate(expression: ast.Expr, recording: Recording, now: float) -> Value:
    """A number, or a vector: a number for each set of labels. ``now``: seconds.

    Raises LabError: two series have the same labels where one is needed.
    """
    match expression:
        case ast.ParenExpr():
            return evaluate(expression.expr, recording, now)
        case ast.NumberLiteral():
            return expression.val
        case ast.UnaryExpr():
            found = evaluate(expression.expr, recording, now)
            return {key: -value for key, value in _nameless(found).items()} if isinstance(found, dict) else -found
        case ast.VectorSelector():
            return recording.instant(expression, now)
        case ast.Call():
            return _call(expression, recording, now)
        case ast.AggregateExpr():
            return _aggregate(expression, recording, now)
        case ast.BinaryExpr():
            return _binary(expression, recording, now)
    raise _unknown(type(expression).__name__)


def _call(call: ast.Call, recording: Recording, now: float) -> Vector:
    argument = call.args[0]
    if call.func.name == ABSENT:
        return {} if evaluate(argument, recording, now) else {_asked(argument): 1.0}
    while isinstance(argument, ast.ParenExpr):
        argument = argument.expr
    function, found = OVER_TIME[call.func.name], Vector()
    for labels, samples in recording.ranges(argument, now):
        value = function(samples, now - argument.range.total_seconds(), now)
        if value is not None:
            _put(found, without(labels, [NAME]), value)
    return found


def _asked(argument: ast.Expr) -> Labels:
    """The labels of an absent series, where a selector says what they would be."""
    if not isinstance(argument, ast.VectorSelector):
        return ()
    names = [matcher.name for matcher in argument.matchers.matchers]
    equal = [one for one in argument.matchers.matchers if one.op == ast.MatchOp.Equal and names.count(one.name) == 1]
    return as_labels({one.name: one.value for one in equal if one.name != NAME})


def _aggregate(part: ast.AggregateExpr, recording: Recording, now: float) -> Vector:
    groups: dict[Labels, list[float]] = {}
    vector = evaluate(part.expr, recording, now)
    assert isinstance(vector, dict)  # the parser has seen to that
    for labels, value in vector.items():
        if part.modifier and part.modifier.type == ast.AggModifierType.Without:
            key = without(labels, [*part.modifier.labels, NAME])
        else:
            key = only(labels, part.modifier.labels if part.modifier else ())
        groups.setdefault(key, []).append(value)
    return {key: float(AGGREGATIONS[str(part.op)](_numbers(values, part))) for key, values in groups.items()}


def _numbers(values: list[float], part: ast.AggregateExpr) -> list[float]:
    """``min`` and ``max`` leave out what is no number, while there are others."""
    numbers = [value for value in values if not math.isnan(value)]
    return numbers if numbers and str(part.op) in ("min", "max") else values


def _binary(part: ast.BinaryExpr, recording: Recording, now: float) -> Value:
    left, right = evaluate(part.lhs, recording, now), evaluate(part.rhs, recording, now)
    name, as_number = str(part.op), bool(part.modifier and part.modifier.return_bool)
    if isinstance(left, dict) and isinstance(right, dict):
        return _sets(name, part, left, right) if name in SETS else _matched(name, part, left, right, as_number)
    if not isinstance(left, dict) and not isinstance(right, dict):
        return float((ARITHMETIC | COMPARISON)[name](left, right))
    vector = left if isinstance(left, dict) else right
    assert isinstance(vector, dict)
    found = Vector()
    for labels, value in vector.items():
        one, other = (value, right) if vector is left else (left, value)
        assert not isinstance(one, dict) and not isinstance(other, dict)
        if name in ARITHMETIC or as_number:
            _put(found, without(labels, [NAME]), float((ARITHMETIC | COMPARISON)[name](one, other)))
        elif COMPARISON[name](one, other):
            found[labels] = value
    return found


def _key(part: ast.BinaryExpr, labels: Labels) -> Labels:
    """What two series have in common that belong together: ``on`` some labels, or all but those ``ignoring``."""
    matching = part.modifier.matching if part.modifier else None
    if matching and matching.type == ast.LabelModifierType.Include:
        return only(labels, matching.labels)
    return without(labels, [NAME, *(matching.labels if matching else ())])


def _sets(name: str, part: ast.BinaryExpr, left: Vector, right: Vector) -> Vector:
    if name == "or":
        known = {_key(part, labels) for labels in left}
        return left | {labels: value for labels, value in right.items() if _key(part, labels) not in known}
    known = {_key(part, labels) for labels in right}
    return {labels: value for labels, value in left.items() if (_key(part, labels) in known) == (name == "and")}


def _matched(name: str, part: ast.BinaryExpr, left: Vector, right: Vector, as_number: bool) -> Vector:
    """One series against one, by their labels."""
    others = Vector()
    for labels, value in right.items():
        _put(others, _key(part, labels), value)
    found, taken = Vector(), set[Labels]()
    for labels, value in left.items():
        key = _key(part, labels)
        if key not in others:
            continue
        if key in taken:
            raise _twice(key)
        taken.add(key)
        if name in ARITHMETIC or as_number:
            found[key] = float((ARITHMETIC | COMPARISON)[name](value, others[key]))
        elif COMPARISON[name](value, others[key]):
            found[key if part.modifier and part.modifier.matching else labels] = value
    return found


def _nameless(vector: Vector) -> Vector:
    found = Vector()
    for labels, value in vector.items():
        _put(found, without(labels, [NAME]), value)
    return found


def _put(vector: Vector, labels: Labels, value: float) -> None:
    if labels in vector:
        raise _twice(labels)
    vector[labels] = value


def _twice(labels: Labels) -> LabError:
    shown = ", ".join(f'{name}="{value}"' for name, value in labels)
    return LabError(
        f"several series have the labels {{{shown}}}",
        "each series on the left needs exactly one partner, and a result needs labels of its own",
        "sum by (...) both sides first, or select one metric",
    )
