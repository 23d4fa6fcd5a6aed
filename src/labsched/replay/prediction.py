"""What `predict` and `plan` say of a recording: their documents, tables and remarks, with and without labctl."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from labsched.log.settings import SchedulerSettings
from labsched.replay.answer import KNEE_STEPS, Predictor, extrapolation_in_words
from labsched.replay.recording import Recording, other_recordings, others_in_words
from labsched.replay.steptime import HELD_UP, TERMS, TOKEN, Extrapolated
from labsched.replay.vllm_arguments import their_names

TOKENS = "each token of a step beyond {:,.0f}"
PACED = "a step takes the time of the device that pace names, whatever the recorded steps took"
RecordCommand = Callable[[Extrapolated, Mapping[str, str]], str]  # a command that records such steps; "": none is known


def no_command(_: Extrapolated, __: Mapping[str, str]) -> str:
    return ""


def prediction_document(
    predictor: Predictor, wanted: Mapping[str, str], guess: Mapping[str, float], record: RecordCommand = no_command
) -> dict[str, Any]:
    """The document of `predict`. Raises LabError: these settings cannot be predicted."""
    predicted = predictor.predict(wanted)
    return {
        **recording_named(predictor.recording),
        "set": dict(wanted),
        **theirs(predictor.recording.settings, wanted),
        "guess": dict(guess),
        "recorded": predictor.recorded(),
        "predicted": dict(predicted.figures),
        "low": dict(predicted.low),
        "high": dict(predicted.high),
        "step_time": predictor.model.to_json(),
        "paced": predicted.settings.pace is not None,
        "extrapolated": extrapolation_mark(predictor, predicted.extrapolated, wanted, record),
    }


def plan_document(predictor: Predictor, rate: float, slo: str, record: RecordCommand = no_command) -> dict[str, Any]:
    """The document of `plan`. Raises LabError as the predictor does."""
    answers = {
        "max_num_sequences": predictor.slots_enough(rate),
        "replicas": predictor.replicas_enough(rate),
        "knee_per_s": predictor.knee(),
    }
    marks = {name: extrapolation_mark(predictor, answer.extrapolated, {}, record) for name, answer in answers.items()}
    return {
        **recording_named(predictor.recording),
        "rate": rate,
        "slo": slo,
        **{name: answer.value for name, answer in answers.items()},
        "tried": {name: answer.tried for name, answer in answers.items()},
        "extrapolated": marks,
    }


def plan_lines(predictor: Predictor, document: Mapping[str, Any]) -> list[str]:
    """The answers of a plan, a line each."""
    settings, tried, marks = predictor.recording.settings, document["tried"], document["extrapolated"]
    name = next(iter(theirs(settings, {"max_num_sequences": ""}).get("vllm", {})), "max_num_sequences")
    slots, replicas, knee = document["max_num_sequences"], document["replicas"], document["knee_per_s"]
    # Where every rate that was tried was within the limits, the knee is higher: the recording is too short to have one.
    over = "over " if knee and knee > tried["knee_per_s"] * (1 - 1.5 / 2**KNEE_STEPS) else ""
    words = {
        "one replica": f"{name}={slots}" if slots else f"not with {name} up to {tried['max_num_sequences']}",
        "replicas": f"{replicas or 'not with up to ' + str(tried['replicas'])} ({name}={slots_of(predictor)})",
        "knee": f"{over}{knee:.2f} requests/s a replica" if knee else "not even one request at a time",
    }
    return [
        f"{title:<15}{text}{'  (extrapolated)' if mark else ''}"
        for (title, text), mark in zip(words.items(), marks.values(), strict=True)
    ]


def plan_remarks(predictor: Predictor, document: Mapping[str, Any]) -> list[str]:
    """What is to be known of a plan's answers."""
    remarks = [remark for remark in map(extrapolation_sentence, document["extrapolated"].values()) if remark]
    return [*recording_remarks(document), *dict.fromkeys(remarks), *time_remarks(predictor.model.to_json())]


def recording_remarks(document: Mapping[str, Any]) -> list[str]:
    """Say which recording of a folder was read, where it holds others."""
    others = document.get("others", ())
    return [f"recorded: {document['recording']}. {others_in_words(others)}".rstrip(".")] if others else []


def recording_named(read: Recording) -> dict[str, Any]:
    """Return, for a document, which recording was read and what else lies beside it."""
    return {"recording": read.name or read.source, "others": other_recordings(Path(read.source), [read])}


def extrapolation_mark(
    predictor: Predictor, found: Extrapolated, wanted: Mapping[str, str], record: RecordCommand
) -> dict[str, Any] | None:
    """How many steps are extrapolated, why, and the command whose recording would have such steps; None: none is."""
    if not found.steps:
        return None
    why = extrapolation_in_words(found, predictor.model)
    return {"steps": found.steps, "why": why, "record": record(found, wanted)}


def theirs(settings: SchedulerSettings, wanted: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """The settings under vLLM's own names, for a document; {} where the recording is not of somebody's own vLLM."""
    return {"vllm": their_names(settings, wanted)} if settings.recorded and wanted else {}


def slots_of(predictor: Predictor) -> str:
    return predictor.recording.settings.words["max_num_sequences"] or "16"


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
    remarks[:0] = recording_remarks(document)
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
    """The same on the model alone (:meth:`labsched.replay.steptime.StepTime.to_json`)."""
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
    """A sentence on the test of the interval (:class:`labsched.replay.steptime.LeftOut`)."""
    sizes, within = found["sizes"], found["within"]
    return (
        f"sizes of steps left out of the fit, one at a time: {sizes}; {within} took a time inside the interval of the "
        f"others, and the median error was {found['error']:.1%}"
    )


def format_number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.2f}"
