"""labkit.promql on samples small enough to compute by hand (test_promql_promtool.py asks Prometheus)."""

from __future__ import annotations

import math

import pytest

from labkit.errors import LabError
from labkit.promql.alerts import Firing, firings, read_rules
from labkit.promql.evaluate import evaluate, parse
from labkit.promql.samples import Recording

STALE = None


def recording(**series: list[tuple[float, float | None]]) -> Recording:
    """Series by name, each with the label i="x"."""
    made = Recording()
    for name, samples in series.items():
        for time, value in samples:
            made.add(name, {"i": "x"}, time, value)
    return made


def value(text: str, samples: Recording, now: float) -> float | None:
    """The only number of an expression; None where it has none."""
    found = evaluate(parse(text), samples, now)
    if not isinstance(found, dict):
        return found
    assert len(found) < 2
    return next(iter(found.values()), None)


def test_rate_is_stretched_to_both_ends_of_its_range_if_samples_are_near_them() -> None:
    counter = recording(c=[(15, 10), (30, 20), (45, 30), (60, 40)])
    assert value("increase(c[1m])", counter, 67) == pytest.approx(30 * 60 / 45)
    assert value("rate(c[1m])", counter, 67) == pytest.approx(30 / 45)


def test_rate_is_stretched_by_half_a_gap_where_an_end_is_far_from_the_samples() -> None:
    counter = recording(c=[(100, 1000), (110, 1020)])
    assert value("increase(c[1m])", counter, 120) == pytest.approx(20 * (10 + 5 + 10) / 10)


def test_a_counter_is_not_stretched_below_zero() -> None:
    counter = recording(c=[(20, 1), (30, 11)])
    assert value("increase(c[1m])", counter, 60) == pytest.approx(10 * (10 + 1 + 5) / 10)
    assert value("delta(c[1m])", counter, 60) == pytest.approx(10 * (10 + 5 + 5) / 10)


def test_a_counter_that_restarts_goes_on_from_zero_for_rate_and_falls_for_delta() -> None:
    counter = recording(c=[(10, 100), (20, 110), (30, 3), (40, 5)])
    assert value("increase(c[40s])", counter, 45) == pytest.approx((10 + 3 + 2) * (30 + 5 + 5) / 30)
    assert value("delta(c[40s])", counter, 45) == pytest.approx((5 - 100) * (30 + 5 + 5) / 30)
    assert value("resets(c[40s])", counter, 45) == 1


def test_one_sample_has_no_rate() -> None:
    assert value("rate(c[1m])", recording(c=[(50, 1)]), 60) is None


def test_a_sample_counts_for_five_minutes_and_a_stale_series_not_at_all() -> None:
    samples = recording(a=[(10, 7)], b=[(10, 7), (20, STALE)])
    assert [value("a", samples, now) for now in (9, 10, 309, 310)] == [None, 7, 7, None]
    assert [value("b", samples, now) for now in (19, 20)] == [7, None]


def test_nothing_divided_by_nothing_is_no_number_and_no_comparison_holds_for_it() -> None:
    samples = recording(a=[(0, 0)], b=[(0, 0)])
    assert math.isnan(value("a / b", samples, 1) or 0)
    assert value("a / b > 0", samples, 1) is None
    assert value("a / b <= 0", samples, 1) is None


def test_two_series_of_one_set_of_labels_are_an_error_that_names_the_labels() -> None:
    samples = recording(a=[(0, 1)], b=[(0, 1)])
    with pytest.raises(LabError, match=r'several series have the labels \{i="x"\}'):
        evaluate(parse('-{__name__=~"a|b"}'), samples, 1)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("topk(3, a)", "topk"),
        ("histogram_quantile(0.9, a)", "histogram_quantile"),
        ("a offset 5m", "offset"),
        ("rate(a[5m] offset 1m)", "offset"),
        ("a @ 5", "@"),
        ("max_over_time(rate(a[1m])[5m:])", "a subquery"),
        ("a * on (i) group_left b", "group_left and group_right"),
        ("a ^ 2", "^"),
        ('a{i="x" or i="y"}', "or between matchers"),
    ],
)
def test_what_is_not_evaluated_is_refused_by_its_name(text: str, named: str) -> None:
    with pytest.raises(LabError) as error:
        parse(text)
    assert error.value.what == f"{named} is not evaluated here"


def test_an_alert_fires_when_its_expression_has_held_for_its_time_and_again_after_a_pause() -> None:
    samples = recording(a=[(float(t), float(t not in (90, 100))) for t in range(30, 160, 10)])
    rules = read_rules("groups: [{name: g, rules: [{alert: A, expr: a == 1, for: 30s}]}]")
    assert [*firings(rules, samples, 0, 150, 10)] == [Firing(t, "A", (("i", "x"),)) for t in (60, 140)]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("groups: [", "the rules are not YAML"),
        ("rules: []", "the file is no Prometheus rule file"),
        ("groups: []", "the file has no alert"),
        ("groups: [{rules: [{record: a, expr: b}]}]", "record is not known in a rule"),
        ("groups: [{rules: [{alert: A, expr: b, for: soon}]}]", "for: soon is no duration"),
        ("groups: [{rules: [{alert: A, expr: 'b >'}]}]", "an expression is not PromQL"),
        ("groups: [{rules: [{alert: A}]}]", "the file is no Prometheus rule file"),
    ],
)
def test_a_rule_file_that_cannot_be_read_says_why(text: str, what: str) -> None:
    with pytest.raises(LabError) as error:
        read_rules(text)
    assert error.value.what == what
