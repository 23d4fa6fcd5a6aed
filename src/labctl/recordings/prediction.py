"""A prediction beside its measurement: kept by ``labctl predict --run``, shown there, in report.md and by compare."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from labkit import disk
from labkit.disk import atomic_write
from labkit.errors import LabError
from labkit.evidence import batches
from labkit.evidence.records import Lane, RequestRecord
from labsched.lines import MODEL
from labsched.markdown import markdown
from labsched.step import Step
from labsched.steptime import HELD_UP, TERMS, TOKEN

FILE, PICTURE, REPORT = "prediction.json", "prediction.png", "report.md"
TOKENS = "each token of a step beyond {:,.0f}"
PACED = "a step takes the time of the device that pace names, whatever the recorded steps took"


def prediction_lane(title: str, rows: Sequence[Step], arrived: Mapping[str, float]) -> Lane:
    """What :mod:`labkit.evidence.batches` draws of a run, predicted or measured; ``arrived``: seconds, by request."""
    ended = {name: row.over for row in rows for name in row.ended}
    records = [
        RequestRecord(name, MODEL, "", start=start, end=ended[name], id=name)
        for name, start in arrived.items()
        if name in ended
    ]
    return Lane(title, records, rows)


def write_prediction(out: Path, document: Mapping[str, Any], lanes: Sequence[Lane]) -> None:
    """Write the prediction, its measurement and any guess into a result's folder, with a picture and report.md."""
    atomic_write(out / FILE, json.dumps(document, indent=1))
    batches.draw_batches(lanes, out / PICTURE, "predicted and measured")
    settings = ", ".join(f"`{name}={value}`" for name, value in document["set"].items()) or "the recorded settings"
    rows, header = prediction_table(document)
    parts = [
        f"# Predicted and measured: {settings}",
        markdown(rows, header),
        *(f"{remark[0].upper()}{remark[1:]}." for remark in prediction_remarks(document)),
        f"![predicted and measured]({PICTURE})",
    ]
    atomic_write(out / REPORT, "\n\n".join(parts) + "\n")


def read_prediction(path: Path) -> dict[str, Any] | None:
    """The document of a result's folder that :func:`write_prediction` wrote; None if it has none. Raises LabError:
    damaged.
    """
    file = path / FILE
    if not file.is_file():
        return None
    try:
        document = disk.read_object(file)
        prediction_table(document)
        prediction_remarks(document)
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise LabError(
            f"{file} is damaged",
            str(error),
            "labctl predict RESULT --set ... --run makes another",
            code="prediction-damaged",
        ) from error
    return document


def prediction_table(document: Mapping[str, Any]) -> tuple[list[tuple[str, ...]], tuple[str, ...]]:
    """Rows and header: what was recorded, predicted, guessed and measured, and the error, by figure."""
    measured, guess = document.get("measured", {}), document["guess"]
    header = ["", "recorded", "predicted", "interval"]
    if guess:
        header.append("guess")
    if measured:
        header += ["measured", "error"]
    rows = []
    for name, predicted in document["predicted"].items():
        interval = f"{format_number(document['low'][name])} to {format_number(document['high'][name])}"
        row = [name, format_number(document["recorded"][name]), format_number(predicted), interval]
        if guess:
            row.append(format_number(guess[name]) if name in guess else "")
        if measured:
            error = document["error"].get(name)
            row += [format_number(measured[name]), "-" if error is None else f"{error:+.1%}"]
        rows.append(tuple(row))
    return rows, tuple(header)


def prediction_remarks(document: Mapping[str, Any]) -> list[str]:
    """Sentences on the model of a step's time, its noise floor, and where prediction and measurement part."""
    remarks = [PACED] if document.get("paced") else time_remarks(document["step_time"])
    if sentence := extrapolation_sentence(document.get("extrapolated")):
        remarks.insert(0, sentence)
    if left_out := document.get("left_out"):
        settings = ", ".join(left_out)
        remarks.append(f"recorded settings that this stack does not have, and that were left out: {settings}")
    if "measured" in document:
        if parting := document["parting"]:
            remarks.append(f"first difference: step {parting['step']:,}, {', '.join(parting['differs'])}")
        else:
            remarks.append("no difference in any step")
    return remarks


def extrapolation_sentence(mark: Mapping[str, Any] | None) -> str:
    """A sentence on the steps whose time was extrapolated, with the command that would record such steps; "": none."""
    if not mark:
        return ""
    steps = f"{mark['steps']:,} {'step is' if mark['steps'] == 1 else 'steps are'}"
    sentence = f"extrapolated: {steps} far from every recorded size, with {mark['why']}"
    return f"{sentence}; to record such steps: {mark['record']}" if mark["record"] else sentence


def time_remarks(model: Mapping[str, Any]) -> list[str]:
    """The same on the model alone (:meth:`labsched.steptime.StepTime.to_json`)."""
    costs = {term: f"{cost * 1e6:,.1f}" for term, cost in model["seconds"].items()}
    if bend := model["bend_tokens"]:
        costs = {TOKENS.format(bend) if term == TERMS[TOKEN] else term: cost for term, cost in costs.items()}
    terms = " + ".join(f"{cost} for {term}" for term, cost in costs.items() if cost != "0.0")
    twice, (fastest, slowest) = model["same_shape_steps"], model["parts"]
    noise = f"{model['noise_floor']:.1%} ({twice:,} steps whose batch shape occurred twice)" if twice else "unknown"
    held, held_s = model.get("held_up_steps", 0), model.get("held_up_s", 0.0)
    remarks = []
    if held:
        remarks.append(f"steps held up, to over {HELD_UP} times the model's time: {held:,}, by {held_s:.2f} s in all")
    return [
        *remarks,
        f"a step takes, in µs: {terms}; {model['gap_s'] * 1e6:,.0f} to the next",
        f"noise floor {noise} in {model['steps']:,} recorded steps",
        *([_left_out(left_out)] if (left_out := model["left_out"])["sizes"] else []),
        f"tenths of the recording took {fastest:.2f} to {slowest:.2f} of the model's time: the interval has both",
    ]


def _left_out(found: Mapping[str, Any]) -> str:
    """A sentence on the test of the interval (:class:`labsched.steptime.LeftOut`)."""
    sizes, within = found["sizes"], found["within"]
    return (
        f"sizes of steps left out of the fit, one at a time: {sizes}; {within} took a time inside the interval of the "
        f"others, and the median error was {found['error']:.1%}"
    )


def format_number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.2f}"
