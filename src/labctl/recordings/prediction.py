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
from labsched.log.lines import MODEL
from labsched.markdown import markdown
from labsched.replay.prediction import prediction_remarks, prediction_table
from labsched.step import Step

FILE, PICTURE, REPORT = "prediction.json", "prediction.png", "report.md"


def prediction_lane(title: str, steps: Sequence[Step], arrived: Mapping[str, float]) -> Lane:
    """What :mod:`labkit.evidence.batches` draws of a run, predicted or measured; ``arrived``: seconds, by request."""
    ended = {name: step.over for step in steps for name in step.ended}
    records = [
        RequestRecord(name, MODEL, "", start=start, end=ended[name], id=name)
        for name, start in arrived.items()
        if name in ended
    ]
    return Lane(title, records, steps)


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
