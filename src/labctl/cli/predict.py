"""labctl predict and labctl plan."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from labctl.cli import options as opt
from labctl.cli.console import Console, is_terminal, say
from labkit.errors import LabError
from labkit.tables import format_table
from labsched.printable import printable

if TYPE_CHECKING:
    from labctl.recordings.vllm import VllmReplays
    from labsched.log.settings import SchedulerSettings
    from labsched.replay.answer import Prediction, Predictor
    from labsched.replay.steptime import Extrapolated

GUESSED = "ttft_p50_ms"
IN_FLIGHT = "-in-flight"  # how `labctl bench` names the phases whose clients keep so many requests in flight

result_argument = click.argument("result", type=opt.A_PATH)
strict_option = click.option(
    "--strict", is_flag=True, help="Refuse steps that are far from every recorded size, instead of extrapolating."
)
phase_option = click.option("--phase", metavar="NAME", help="The phase to predict from (steps-NAME.jsonl).")
in_flight_option = opt.number_option(
    "--in-flight",
    None,
    "Send the next request when one of N ends. The default is the recorded times, or the N of a bench.",
    click.IntRange(0),
)


@dataclass(frozen=True)
class _ChangeOptions:
    """What is changed in a recording's scheduler: settings, and with ``sweep`` each value of one more."""

    assignments: tuple[str, ...]
    sweep: str

    def swept(self) -> tuple[str, list[str]]:
        """Name and values of ``sweep``. Raises UsageError."""
        key, _, values = self.sweep.partition("=")
        if not key or not all(values.split(",")):
            raise click.UsageError("--sweep takes KEY=A,B,C")
        return key, values.split(",")


@dataclass(frozen=True)
class _ReplayOptions:
    """How a recording is replayed: one ``phase``, what keeps its requests coming, their limits, and by which scheduler.

    ``in_flight``: the next request comes when one of so many ends; 0: at the recorded times; None: as it was recorded.
    """

    phase: str | None
    strict: bool
    in_flight: int | None = 0
    slo: str | None = None
    scheduler: Path | None = None


@click.command("predict")
@result_argument
@opt.gathered(
    "change",
    _ChangeOptions,
    click.option(
        "--set",
        "assignments",
        multiple=True,
        metavar="KEY=VALUE",
        help="Change a setting of the scheduler; may be repeated.",
    ),
    click.option("--sweep", default="", metavar="KEY=A,B,C", help="Predict each of these values."),
)
@opt.gathered(
    "how",
    _ReplayOptions,
    phase_option,
    strict_option,
    in_flight_option,
    click.option("--slo", metavar="LIMITS", help=opt.SLO_HELP),
    click.option(
        "--scheduler", type=opt.A_FILE, metavar="FILE", help="A scheduler.py of your own, as one beside model.py."
    ),
)
@click.option("--run", "run_it", is_flag=True, help="Then run it on the real server, and print the error.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask for a guess.")
@opt.result_output
@opt.verbose
def predict_command(
    result: Path,
    change: _ChangeOptions,
    how: _ReplayOptions,
    run_it: bool,
    yes: bool,
    shown: opt.ResultOutput,
    verbose: bool,
) -> None:
    """Predict the requests of RESULT under other settings of the in-flight scheduler.

    RESULT is a folder below results/, one steps-PHASE.jsonl of it, or the folder that a vLLM of your own records into
    (docs/guide/your-own-vllm.md); vLLM's names of settings are taken too. The scheduler itself is replayed in virtual
    time; the time of a step is a model fitted on the recording (docs/guide/prediction.md).
    """
    from labctl.settings import parse_assignments
    from labsched.replay import prediction
    from labsched.replay.vllm_arguments import labs_names

    wanted = dict(parse_assignments(change.assignments))
    if change.sweep and run_it:
        raise click.UsageError("--run measures one prediction: leave out --sweep")
    if how.scheduler and run_it:
        raise click.UsageError("--run serves the shipped scheduler: leave out --scheduler")
    predictor = _predictor(result, how)
    wanted = labs_names(predictor.recording.settings, wanted)
    if change.sweep:
        _sweep(predictor, wanted, *change.swept(), shown)
        return
    guess: dict[str, float] = {}
    if not (yes or shown.json_output) and is_terminal():
        guess[GUESSED] = _guess(predictor.recorded()[GUESSED])
    document = prediction.prediction_document(predictor, wanted, guess, partial(_record, predictor))
    if run_it:
        document = _measure(predictor, document, verbose)
    _write(document, shown)
    if not shown.json_output:
        _show(document)


@click.command("plan")
@result_argument
@click.option("--slo", required=True, metavar="LIMITS", help=opt.SLO_HELP)
@click.option("--rate", type=opt.POSITIVE, required=True, metavar="R", help="Requests per second, with random gaps.")
@phase_option
@strict_option
@opt.result_output
def plan_command(result: Path, slo: str, rate: float, phase: str | None, strict: bool, shown: opt.ResultOutput) -> None:
    """Find the smallest setting and number of replicas that keep 99 % of requests within limits.

    The requests are those of RESULT, at R per second. The knee is the highest rate that one replica keeps up.
    """
    from dataclasses import replace

    from labsched.replay import prediction

    console = Console()
    console.step("settings replayed")
    predictor = replace(_predictor(result, _ReplayOptions(phase, strict, slo=slo)), tell=console.progress)
    document = prediction.plan_document(predictor, rate, slo, partial(_record, predictor))
    console.settle()
    _write(document, shown)
    if not shown.json_output:
        for line in prediction.plan_lines(predictor, document):
            click.echo(line)
        _say(prediction.plan_remarks(predictor, document))


def _sweep(
    predictor: Predictor, wanted: Mapping[str, str], key: str, values: Sequence[str], shown: opt.ResultOutput
) -> None:
    """A column for each value that has an answer, and a line for each that has none."""
    from labsched.replay.prediction import (
        extrapolation_mark,
        extrapolation_sentence,
        format_number,
        recording_named,
        recording_remarks,
        time_remarks,
    )
    from labsched.replay.vllm_arguments import labs_names

    predicted: dict[str, Prediction] = {}
    marks: dict[str, dict[str, Any] | None] = {}
    refused: dict[str, LabError] = {}
    for value in values:
        try:
            settings = {**wanted, **labs_names(predictor.recording.settings, {key: value})}
            predicted[value] = predictor.predict(settings)
        except LabError as error:
            refused[value] = error
        else:
            marks[value] = extrapolation_mark(
                predictor, predicted[value].extrapolated, settings, partial(_record, predictor)
            )
    if not predicted:
        raise next(iter(refused.values()))
    document: dict[str, Any] = {
        **recording_named(predictor.recording),
        "sweep": key,
        "set": dict(wanted),
        "predicted": {value: dict(prediction.figures) for value, prediction in predicted.items()},
        "refused": {value: f"{error}" for value, error in refused.items()},
        "extrapolated": marks,
        "step_time": predictor.model.to_json(),
    }
    _write(document, shown)
    if shown.json_output:
        return
    rows: list[list[str]] = []
    for name in next(iter(predicted.values())).figures:
        rows.append([name, *(format_number(prediction.figures[name]) for prediction in predicted.values())])
    if any(marks.values()):
        rows.append(["extrapolated steps", *(f"{mark['steps']:,}" if mark else "" for mark in marks.values())])
    click.echo(format_table(rows, (key, *predicted), right=range(1, len(predicted) + 1)))
    for value, reason in refused.items():
        say(printable(f"no answer for {key}={value}: {reason.what}: {reason.why}"))
    largest = max((mark for mark in marks.values() if mark), key=lambda mark: mark["steps"], default=None)
    remark = extrapolation_sentence(largest)
    _say([*recording_remarks(document), *([remark] if remark else []), *time_remarks(predictor.model.to_json())])


def _record(predictor: Predictor, found: Extrapolated, wanted: Mapping[str, str]) -> str:
    """A ``labctl bench`` that records steps of the extrapolated sizes; "" where the stack is not known."""
    from labctl.labs.rerun import Recorded
    from labsched.replay.prediction import slots_of

    arrivals = predictor.recording.arrivals
    prompt = max(1, sum(arrival.prompt for arrival in arrivals) // len(arrivals))
    together = max(found.decoding, -(-found.prompt // prompt))
    asked = {name: value for name, value in wanted.items() if name != "gpt_model_type"}
    if found.decoding:
        asked["max_num_sequences"] = str(
            max(found.decoding, int(asked.get("max_num_sequences") or slots_of(predictor)))
        )
    if found.prompt > predictor.recording.settings.step_tokens:
        asked["max_num_tokens"] = str(found.prompt)
    try:
        session = opt.open_session(False)
        return Recorded.of(predictor.recording).command(
            session, asked, "--concurrency", str(together), "--request-count", str(4 * together)
        )
    except LabError:
        return ""


def _predictor(result: Path, how: _ReplayOptions) -> Predictor:
    from labsched.replay import answer, clients, player, recording
    from labsched.replay.slo import Slo
    from labsched.replay.vllm_scheduler import change_vllm_settings

    read = recording.read_recording(result, how.phase)
    read = read.in_turn(clients.sent_requests(read))
    limits = Slo.parse(how.slo) if how.slo else None
    name = Path(read.source).name.removeprefix("steps-").removesuffix(".jsonl")
    in_flight = how.in_flight or None
    if how.in_flight is None:
        number = name.removesuffix(IN_FLIGHT)
        in_flight = int(number) if name.endswith(IN_FLIGHT) and number.isdigit() else None
    if read.settings.beyond:
        change_vllm_settings(read.settings, {})  # it is refused before vLLM is started
    if read.settings.vllm:
        replays = _vllm(read.settings, how.scheduler)
        return answer.Predictor.of(read, in_flight, limits, replays.replay, how.strict, change_vllm_settings)
    if read.settings.own and not how.scheduler:
        raise LabError(
            f"{result} was recorded with a scheduler of your own",
            "the recording does not hold its code",
            f"--scheduler {read.settings.own}",
            code="scheduler-not-recorded",
        )
    replayed = player.replay
    if how.scheduler:
        replayed = partial(player.replay, kind=answer.own_scheduler(how.scheduler))
    return answer.Predictor.of(read, in_flight, limits, replayed, how.strict)


def _vllm(settings: SchedulerSettings, scheduler: Path | None) -> VllmReplays:
    """Replays of vLLM's scheduler. Raises LabError: vLLM is not installed, or not as shipped."""
    from labctl.recordings.vllm import VllmReplays
    from labctl.runtimes.layers import layer
    from labctl.workspace import Workspace

    if scheduler or settings.own:
        raise LabError(
            "only vLLM's own scheduler is replayed",
            f"this is {scheduler or settings.own}",
            "record without it",
            code="scheduler-not-vllms",
        )
    replays = VllmReplays(layer("vllm", Workspace.find()).require())
    return click.get_current_context().with_resource(replays)


def _measure(predictor: Predictor, document: Mapping[str, Any], verbose: bool) -> dict[str, Any]:
    """Run the requests on the real server, and predict once more what was sent: no answer stops early there.

    The document with both is also kept in the run's folder.
    """
    from labctl.labs import rerun
    from labctl.recordings import prediction
    from labsched.replay import figures
    from labsched.replay.prediction import extrapolation_mark

    session, wanted = opt.open_session(verbose), document["set"]
    ran = rerun.rerun_recording(session, predictor.recording, wanted, predictor.in_flight)
    predicted = predictor.predict(wanted, ran.sent)
    arrived = {arrival.name: arrival.at for arrival in ran.measured.arrivals}
    measured = figures.figures(ran.measured.steps, arrived, predictor.slo)
    errors = {name: predicted.figures[name] / value - 1 for name, value in measured.items() if value}
    parting = figures.first_difference(predicted.steps, ran.measured.steps)
    both = {
        **document,
        "predicted": dict(predicted.figures),
        "low": dict(predicted.low),
        "high": dict(predicted.high),
        "measured": measured,
        "error": errors,
        "folder": str(ran.folder),
        "left_out": list(ran.left_out),
        "extrapolated": extrapolation_mark(predictor, predicted.extrapolated, wanted, partial(_record, predictor)),
        "parting": {"step": parting.step, "differs": sorted(parting.differs)} if parting else None,
    }
    lanes = [
        prediction.prediction_lane("predicted", predicted.steps, predicted.arrived),
        prediction.prediction_lane("measured", ran.measured.steps, arrived),
    ]
    prediction.write_prediction(ran.folder, both, lanes)
    return both


def _guess(recorded: float) -> float:
    text = f"Your guess first. TTFT p50 was {recorded:.0f} ms; under these settings it is, in ms"
    guess: float = click.prompt(text, type=click.FloatRange(min=0))
    return guess


def _write(document: Mapping[str, Any], shown: opt.ResultOutput) -> None:
    shown.write(json.dumps(document, indent=2))


def _show(document: Mapping[str, Any]) -> None:
    from labsched.replay import prediction

    rows, header = prediction.prediction_table(document)
    click.echo(format_table(rows, header, right=range(1, len(header))))
    _say(prediction.prediction_remarks(document))
    if "folder" in document:
        from labctl.recordings.prediction import PICTURE

        say(printable(f"step log, report.md and {PICTURE} of the run: {document['folder']}"))


def _say(remarks: Sequence[str]) -> None:
    click.echo()
    for remark in remarks:
        say(remark)


def show_kept(results: Sequence[Path], json_output: bool) -> tuple[Path, ...]:
    """Show the predictions that results hold beside what was measured; the results that hold none (`compare`)."""
    from labctl.recordings import prediction

    documents = {path: document for path in results if (document := prediction.read_prediction(path))}
    if json_output and documents and len(results) > 1:
        raise click.UsageError("--json gives one document: name one prediction, or results that hold none")
    for path, document in documents.items():
        if json_output:
            click.echo(json.dumps(document, indent=2))
        else:
            click.echo(printable(f"{path}: {document['set']}") + "\n")
            _show(document)
    return tuple(path for path in results if path not in documents)
