"""A prediction and its measurement, side by side: in a result's folder, and by `labctl compare`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from lab_errors import lab_error
from recordings import SETTINGS, cost, made_up_recording

from labctl.cli.explain import compare_command
from labctl.recordings import prediction
from labkit.evidence.records import Lane
from labsched.replay import answer, figures, player
from labsched.replay.prediction import format_number, prediction_table

Both = tuple[dict[str, Any], list[Lane]]


@pytest.fixture(scope="module")
def both() -> Both:
    """What `labctl predict --run` has after the run: the document, and the lanes of its picture."""
    made_up = made_up_recording()
    predictor = answer.Predictor.of(made_up)
    predicted = predictor.predict({"max_num_sequences": "2"})
    ran = player.replay(made_up, replace(SETTINGS, words=predicted.settings.words), lambda row: 1.1 * cost(row))
    measured = figures.figures(ran.steps, ran.arrived)
    document = {
        "set": {"max_num_sequences": "2"},
        "guess": {"ttft_p50_ms": 123.0},
        "recorded": predictor.recorded(),
        "predicted": dict(predicted.figures),
        "low": dict(predicted.low),
        "high": dict(predicted.high),
        "step_time": predictor.model.to_json(),
        "measured": measured,
        "error": {name: predicted.figures[name] / value - 1 for name, value in measured.items() if value},
        "folder": "results/here",
        "parting": {"step": 7, "differs": ["batch"]},
    }
    lanes = [
        prediction.prediction_lane("predicted", predicted.steps, predicted.arrived),
        prediction.prediction_lane("measured", ran.steps, ran.arrived),
    ]
    return document, lanes


def test_a_result_keeps_guess_prediction_and_measurement(both: Both, tmp_path: Path) -> None:
    document, lanes = both
    prediction.write_prediction(tmp_path, document, lanes)
    assert prediction.read_prediction(tmp_path) == document
    assert prediction.read_prediction(tmp_path / "other") is None


def test_report_md_has_both_numbers_the_error_the_noise_floor_and_the_picture(both: Both, tmp_path: Path) -> None:
    document, lanes = both
    prediction.write_prediction(tmp_path, document, lanes)
    report = (tmp_path / "report.md").read_text()
    (line,) = [line for line in report.splitlines() if "ttft_p50_ms" in line]
    for name in ("predicted", "measured"):
        assert format_number(document[name]["ttft_p50_ms"]) in line
    assert f"{document['error']['ttft_p50_ms']:+.1%}" in line and "123" in line
    assert "oise floor" in report and "step 7, batch" in report
    assert f"({prediction.PICTURE})" in report
    assert (tmp_path / prediction.PICTURE).read_bytes().startswith(b"\x89PNG")


def test_the_picture_has_the_batches_of_both_runs_on_one_scale(both: Both) -> None:
    _, (predicted, measured) = both
    assert {record.id for record in predicted.records} == {record.id for record in measured.records}
    assert max(step.batch for step in predicted.steps) == max(step.batch for step in measured.steps) == 2
    assert measured.steps[-1].over > predicted.steps[-1].over


def test_compare_shows_the_prediction_that_a_result_keeps(both: Both, tmp_path: Path) -> None:
    prediction.write_prediction(tmp_path, *both)
    done = CliRunner().invoke(compare_command, [str(tmp_path)], catch_exceptions=False)
    assert done.exit_code == 0
    header, line = (
        next(one for one in done.output.splitlines() if word in one) for word in ("measured", "e2e_mean_ms")
    )
    assert header.split() == ["recorded", "predicted", "interval", "guess", "measured", "error"]
    assert line.split()[-1] == f"{both[0]['error']['e2e_mean_ms']:+.1%}"
    assert "noise floor" in done.output
    shown = CliRunner().invoke(compare_command, [str(tmp_path), "--json"], catch_exceptions=False)
    assert json.loads(shown.output) == both[0]


def test_a_damaged_prediction_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / prediction.FILE).write_text('{"set": {}}')
    with lab_error("prediction-damaged"):
        prediction.read_prediction(tmp_path)


def test_a_prediction_that_was_not_measured_has_no_such_column(both: Both) -> None:
    document = {name: value for name, value in both[0].items() if name not in ("measured", "error", "parting")}
    _, header = prediction_table({**document, "guess": {}})
    assert header == ("", "recorded", "predicted", "interval")


def test_requests_that_never_ended_are_left_out_of_the_picture() -> None:
    made_up = made_up_recording()
    rows = made_up.steps[:5]
    shown = prediction.prediction_lane("cut", rows, {a.name: a.at for a in made_up.arrivals})
    assert {record.id for record in shown.records} == {name for row in rows for name in row.ended}
