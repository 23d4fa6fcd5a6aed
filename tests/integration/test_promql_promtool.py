"""labkit.promql against Prometheus' own evaluator: the same samples, the same expressions, the same values."""

from __future__ import annotations

import math
import random
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from prometheus_here import prometheus

from labkit.promql.alerts import firings, read_rules
from labkit.promql.evaluate import evaluate, parse
from labkit.promql.samples import Recording, as_labels

__all__ = ["prometheus"]  # a fixture
EVERY = 15  # seconds between samples
# At no multiple of EVERY less a range: Prometheus 2 takes a sample at the very beginning of a range, 3 does not.
MOMENTS = (37, 67, 202, 307, 442, 601, 952)
EXPRESSIONS = """
    errors
    errors{instance="b"}
    {__name__=~"err.*", instance!~"a|c"}
    rate(errors[1m])
    increase(errors[2m])
    rate(requests{instance!="c"}[5m])
    delta(queue[1m])
    resets(errors[5m])
    changes(queue[5m])
    avg_over_time(queue[2m])
    min_over_time(queue[2m])
    max_over_time(queue[90s])
    sum_over_time(queue[2m])
    count_over_time(queue[2m])
    sum by (model) (rate(errors[1m]))
    sum without (instance) (queue)
    max by (instance) (queue)
    min(queue)
    avg by (model) (queue)
    count(up == 1)
    -queue
    (queue + 2) * 3 - 1 / queue
    queue / 0
    queue > 3
    3 < queue
    queue > bool 3
    queue == queue
    errors / requests
    errors > on (instance, model) requests * 0.1
    errors - ignoring (model) requests
    sum by (instance) (rate(errors[1m])) / sum by (instance) (rate(requests[1m])) > 0.1
    up == 0 or on (instance) queue > 3
    queue and on (instance) up == 1
    queue unless on (instance) up == 0
    queue > 2 or errors
    absent(up{job="t", instance="z"})
    absent(up == 5)
    absent(sum(nothing))
    absent(up)
    rate(errors[10s])
    max(rate(nothing[1m]))
    1 / 0 > bool 2
"""


def recorded(rng: random.Random) -> dict[str, list[float | str]]:
    """Random series by name and labels; "_" where a scrape is missing, "stale" where the series ends."""
    found: dict[str, list[float | str]] = {}
    for instance, model in (("a", "m"), ("b", "m"), ("c", "n")):
        errors, requests = 50.0, 900.0
        rows: list[list[float | str]] = [[], [], [], []]
        restart, gone = rng.randint(20, 30), rng.randint(35, 60)
        for number in range(64):
            errors += rng.choice((0, 0, 1, 2.5))
            requests += rng.randint(0, 9)
            if number == restart:
                errors, requests = 40.0, 300.0  # not near zero: there Prometheus 2.42 extrapolates otherwise
            ended = instance == "b" and number >= gone
            values: list[float | str] = [errors, requests, float(rng.randint(0, 6))]
            for row, value in zip(rows, [*values, 0.0 if ended else 1.0], strict=True):
                missing = rng.random() < 0.1
                row.append("stale" if ended and row is not rows[3] else "_" if missing else value)
        labels = f'{{instance="{instance}", model="{model}"}}'
        found |= {f"{name}{labels}": row for name, row in zip(("errors", "requests", "queue"), rows, strict=False)}
        found[f'up{{instance="{instance}", job="t"}}'] = rows[3]
    return found


def labels_of(text: str) -> dict[str, str]:
    return dict(re.findall(r'(\w+)="([^"]*)"', text))


def recording_of(series: dict[str, list[float | str]]) -> Recording:
    recording = Recording()
    for key, values in series.items():
        for number, value in enumerate(values):
            if value != "_":
                is_stale = isinstance(value, str)
                recording.add(key.partition("{")[0], labels_of(key), number * EVERY, None if is_stale else float(value))
    return recording


def promtool(folder: Path, program: Path, tests: dict[str, object], rules: str = "") -> str:
    """What ``promtool test rules`` says: each expectation is empty, so it shows every value."""
    (folder / "rules.yaml").write_text(rules or "groups: []")
    file = folder / "test.yaml"
    file.write_text(yaml.safe_dump({"rule_files": ["rules.yaml"], "evaluation_interval": "15s", "tests": [tests]}))
    done = subprocess.run([program / "promtool", "test", "rules", file], capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def input_series(series: dict[str, list[float | str]]) -> list[dict[str, str]]:
    return [{"series": key, "values": " ".join(map(str, values))} for key, values in series.items()]


def values_said(text: str) -> Iterator[tuple[str, str, dict[tuple[tuple[str, str], ...], float]]]:
    """Expression, moment, and the value of each set of labels, as promtool shows them."""
    for match in re.finditer(r'expr: ("(?:[^"\\]|\\.)*"), time: (\w+),\s+exp: ?nil\s+got: ?(.*)', text):
        expression, moment, got = match.groups()
        found = {}
        for name, inside, value in re.findall(r"(\w*)\{((?:[^}\"]|\"[^\"]*\")*)\} (\S+?)(?:,|$)", got):
            found[as_labels(labels_of(inside) | ({"__name__": name} if name else {}))] = float(value)
        yield yaml.safe_load(expression), moment, found


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_each_expression_has_promtools_values_at_each_moment(prometheus: Path, tmp_path: Path, seed: int) -> None:
    series = recorded(random.Random(seed))
    recording = recording_of(series)
    asked = [line.strip() for line in EXPRESSIONS.strip().splitlines()]
    questions = [{"expr": text, "eval_time": f"{now}s", "exp_samples": []} for text in asked for now in MOMENTS]
    said = promtool(
        tmp_path,
        prometheus,
        {"interval": f"{EVERY}s", "input_series": input_series(series), "promql_expr_test": questions},
    )
    theirs = {(text, seconds(moment)): values for text, moment, values in values_said(said)}
    assert len(theirs) > len(questions) / 2, said  # where both are empty promtool says nothing
    for text in asked:
        for now in MOMENTS:
            value = evaluate(parse(text), recording, now)
            ours = value if isinstance(value, dict) else {(): value}
            other = theirs.get((text, now), {})
            assert ours.keys() == other.keys(), (text, now)
            for labels, number in ours.items():
                expected = other[labels]
                same = math.isclose(number, expected, rel_tol=1e-9) or (math.isnan(number) and math.isnan(expected))
                assert same, (text, now, labels, number, other[labels])


RULES = """
groups:
  - name: labs
    rules:
      - {alert: Waits, expr: queue > 1, for: 30s}
      - {alert: Fails, expr: "sum by (instance) (rate(errors[50s])) > 0.01", for: 1m}
      - {alert: Down, expr: up == 0 or absent(up)}
"""


def test_each_alert_fires_when_promtools_does(prometheus: Path, tmp_path: Path) -> None:
    series = recorded(random.Random(4))
    ours = [(one.time, one.alert, one.labels) for one in firings(read_rules(RULES), recording_of(series), 0, 900, 15)]
    assert {alert for _, alert, _ in ours} == {"Waits", "Fails", "Down"}
    names, moments = ("Waits", "Fails", "Down"), range(0, 901, 15)
    questions = [{"eval_time": f"{now}s", "alertname": name, "exp_alerts": []} for name in names for now in moments]
    said = promtool(
        tmp_path,
        prometheus,
        {"interval": f"{EVERY}s", "input_series": input_series(series), "alert_rule_test": questions},
        RULES,
    )
    firing: dict[tuple[str, float], set[tuple[tuple[str, str], ...]]] = {}
    for name, moment, got in re.findall(
        r"alertname: (\w+), time: (\w+),\s+exp:\[\s*\],?\s+got:\[(.*?)\n? *\]", said, re.S
    ):
        found = [labels_of(labels) for labels in re.findall(r"Labels:\{(.*?)\}\s", got)]
        firing[name, seconds(moment)] = {as_labels(one | {"alertname": ""}) for one in found}
    theirs = [
        (now, name, labels)
        for name in names
        for now in moments
        for labels in firing.get((name, now), set()) - firing.get((name, now - EVERY), set())
    ]
    assert sorted(theirs) == sorted(ours), said


def seconds(duration: str) -> float:
    """Seconds of what Prometheus writes: 1m7s."""
    return sum(int(count) * {"h": 3600, "m": 60, "s": 1}[unit] for count, unit in re.findall(r"(\d+)([hms])", duration))
