"""labctl explain and labctl compare: what results say of a request, and beside one another."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from labctl.cli import completion
from labctl.cli import options as opt
from labctl.cli.console import say
from labkit.errors import LabError
from labkit.evidence.steplog import run_folders
from labkit.printable import printable
from labkit.tables import format_table

if TYPE_CHECKING:
    from labctl.pages.live.parting import Parting
    from labctl.pages.live.story import InstanceSteps, StoryEvent
    from labsched.causes import ExplainedRequest, Finding
    from labsched.recording import Recording

SHOWN = 5  # requests that an error names
HELPS = 0.95  # of a p99, or less: then a setting is worth a try
PERCENTILES = ("p50", "p95", "p99")  # as labsched.causes.cause_table has them


@click.command("explain")
@click.argument("source", metavar="RESULT|STACK", shell_complete=completion.stacks_or_files)
@click.argument("request_or_b", metavar="[REQUEST]", default="")
@click.option("--diff", is_flag=True, help="Show the first step at which two runs of the same requests part.")
@click.option("--phase", default="", metavar="NAME", help="Without REQUEST: the phase to explain (steps-NAME.jsonl).")
@click.option(
    "--picture",
    type=opt.FILE,
    metavar="FILE.png",
    help="Without REQUEST: also draw the parts at each percentile, and the worst second.",
)
@opt.as_json
def explain_command(
    source: str, request_or_b: str, diff: bool, phase: str, picture: Path | None, json_output: bool
) -> None:
    """Show what the slowest requests of RESULT waited for, or why REQUEST waited, step by step.

    RESULT is a folder below results/, one phase of it (steps-PHASE.jsonl), or the folder that a vLLM of your own
    records into. STACK is a stack that is up; it needs a REQUEST: its name on the pages (A, B, C ... in order of
    arrival), its id in the step log, or the name that the run's own client gave it (requests.jsonl; vLLM's id).
    --diff takes two of RESULT and STACK instead.
    """
    if diff:
        _show_parting(source, request_or_b, json_output)
    elif request_or_b:
        _show_story(request_or_b, source, json_output)
    else:
        _show_causes(Path(source), phase, picture, json_output)


def _show_causes(result: Path, phase: str, picture: Path | None, json_output: bool) -> None:
    """The parts of TTFT and TPOT at the percentiles; the largest part, who caused it, and what would change it."""
    from labkit import results
    from labsched import causes, recording

    if not result.exists():
        raise LabError(
            f"{result} does not exist", "", "labctl explain STACK REQUEST for a stack that is up", code="result-missing"
        )
    read = recording.read_recording(result, phase)
    sent = results.sent_requests(read)
    read = read.in_turn(sent)
    explained = causes.explain_requests(read, sent)
    if not explained:
        raise LabError(
            f"{read.source} has no request that was answered", "", "labctl bench STACK", code="recording-empty"
        )
    called = _names(read, phase)
    if picture:
        from labkit.pictures.explained import draw_explanation

        draw_explanation(explained, read, picture, str(result), called)
    findings = [causes.largest_cause(explained, read.settings, metric) for metric in ("TTFT", "TPOT")]
    advices = [_advise(read, finding) for finding in findings]
    if json_output:
        document: dict[str, Any] = {"requests": len(explained)}
        for finding, advice in zip(findings, advices, strict=True):
            ids, parts = causes.cause_table(explained, finding.metric)
            document[finding.metric] = {
                "percentiles": dict(zip(PERCENTILES, ids, strict=True)),
                "names": dict(zip(PERCENTILES, (called[id] for id in ids), strict=True)),
                "parts_ms": dict(parts),
                "largest": {"part": finding.part, "share": finding.share, "culprit": finding.culprit},
                "change": dict(advice.change),
                "p99_ms": advice.p99,
            }
        click.echo(json.dumps(document, indent=2))
        return
    by_name = {request.name: request for request in explained}
    for number, (finding, advice) in enumerate(zip(findings, advices, strict=True)):
        if number:
            click.echo()
        say(printable(_sentence(finding, advice, by_name, read, called)))
        ids, parts = causes.cause_table(explained, finding.metric)
        cells = [(part, *(f"{ms:,.1f}" for ms in values)) for part, values in parts]
        cells.append(("request", *(called[id] for id in ids)))
        click.echo("\n" + format_table(cells, (f"{finding.metric}, ms", *PERCENTILES), right=(1, 2, 3)))
    if picture:
        say(printable(f"\nwritten: {picture}"))
    say(printable(f"\nstep by step: labctl explain {read.source} {called[findings[0].request.name]}"))


def _names(read: Recording, phase: str) -> dict[str, str]:
    """What a person calls the requests of a recording, by their names in it."""
    from labctl.pages.live import story

    letters: dict[str, str] = {}
    for lane in story.of_result(Path(read.source), phase):
        letters |= lane.names
    return {arrival.name: letters.get(arrival.name, arrival.name) for arrival in read.arrivals}


def _sentence(
    found: Finding, advice: _Advice, every: Mapping[str, ExplainedRequest], read: Recording, called: Mapping[str, str]
) -> str:
    """The largest part of a p99, who was in the way, and what another setting would make of it."""
    from labkit.predict.vllm import their_names
    from labsched import causes

    whole, part = found.request.whole(found.metric), causes.WORDS.get(found.part, found.part)
    text = f"p99 of {found.metric} is {whole:,.0f} ms; {found.share:.0%} of it is {part}"
    if other := every.get(found.culprit):
        tenant = f", tenant {other.tenant}" if other.tenant else ""
        lengths = f"{other.prompt:,} prompt and {other.made:,} output tokens"
        text += f", most often for {called[other.name]} ({lengths}{tenant})"
    text += "."
    change = their_names(read.settings, advice.change)
    settings = " --set ".join(f"{name}={value}" for name, value in change.items())
    if found.part == causes.HELD:
        return f"{text} No setting helps against that: see what else the machine computed."
    if advice.p99:
        before, after = advice.p99
        if advice.helps:
            return f"{text} With {settings} the prediction for p99 is {after:,.0f} ms instead of {before:,.0f}."
        predicted = f"the prediction for p99 is {after:,.0f} ms; as recorded, {before:,.0f}"
        return f"{text} {settings} would not help: {predicted}."
    if advice.change and not read.settings.own:
        command = f"labctl predict {read.source} --set {settings}"
        return f"{text} The setting against it: {settings}. {command} says what it does."
    return text


class _Advice(NamedTuple):
    """A setting against a part; {} where there is none. ``p99``: as predicted for the recorded settings and with it,
    in ms; None where there is no answer.
    """

    change: Mapping[str, str] = {}
    p99: tuple[float, float] | None = None

    @property
    def helps(self) -> bool:
        return self.p99 is not None and self.p99[1] <= HELPS * self.p99[0]


def _advise(read: Recording, found: Finding) -> _Advice:
    """The first of the settings against the part that helps, or the first of all where none does."""
    from labsched import answer

    tried = [_Advice(change) for change in found.changes]
    if not tried or read.settings.vllm or read.settings.own:
        return tried[0] if tried else _Advice()
    figure = f"{found.metric.lower()}_p99_ms"
    try:
        predictor = answer.Predictor.of(read)
        before = predictor.likeliest({})[figure]
        for number, change in enumerate(found.changes):
            tried[number] = _Advice(change, (before, predictor.likeliest(change)[figure]))
            if tried[number].helps:
                return tried[number]
    except LabError:
        pass
    return tried[0]


def _show_story(request: str, source: str, json_output: bool) -> None:
    from labctl.pages.live import routes, story

    lanes = _lanes(source)
    found = [(lane, name, story.story_of(lane, name)) for lane, name in story.lanes_of(lanes, request)]
    if not found:
        raise LabError(
            f"{source} has no request {request}",
            _longest(lanes),
            f"labctl explain {source} REQUEST",
            code="request-unknown",
        )
    if json_output:
        stories = [
            {**_lane(lane), "request": name, "name": lane.names[name], "rows": [_row(row) for row in rows]}
            for lane, name, rows in found
        ]
        click.echo(json.dumps(stories, indent=2))
        return
    for number, (lane, name, rows) in enumerate(found):
        if number:
            click.echo()
        label = f", {lane.labels[name]}" if name in lane.labels and lane.labels[name] != name else ""
        say(printable(f"{lane.names[name]} (id {name}{label}) in {lane.title}: {_describe_wait(rows)}"))
        for words in routes.describe_routes(lane.lines, name, lane.names):
            say(printable(words))
        cells = [(_step_range(row), f"{row.seconds:.3f}", row.what, row.words) for row in rows]
        click.echo("\n" + format_table(cells, ("step", "seconds", "it", "reason or tokens"), right=(0, 1)))


def _show_parting(one: str, other: str, json_output: bool) -> None:
    from labctl.pages.live import parting

    partings = [parting.find_parting(*pair) for pair in parting.pair_lanes(_lanes(one), _lanes(other))]
    if json_output:
        click.echo(json.dumps([dataclasses.asdict(found) for found in partings], indent=2))
        return
    say(f"1  {printable(one)}")
    say(f"2  {printable(other)}")
    for found in partings:
        click.echo()
        _show_sides(found)


def _show_sides(found: Parting) -> None:
    title = printable(found.title)
    if found.sides is None:
        say(f"{title}: all {found.steps:,} steps of {found.requests:,} requests are the same")
        return
    one, other = found.sides
    say(f"{title}: {found.requests:,} requests, {found.steps:,} steps alike; the runs part at step {found.steps + 1:,}")
    cells = [
        ("step in the log", str(one.step or "-"), str(other.step or "-")),
        ("batch", " ".join(one.batch) or "-", " ".join(other.batch) or "-"),
        ("waiting", " ".join(one.waiting) or "-", " ".join(other.waiting) or "-"),
        *((f"request {name}", one.reasons[name], other.reasons[name]) for name in one.reasons),
    ]
    click.echo("\n" + format_table(cells, ("", "1", "2")))


def _lanes(source: str) -> list[InstanceSteps]:
    """The step logs of a run or of a running stack."""
    from labctl.pages.live import story

    path = Path(source)
    if "/" in source or path.suffix == ".jsonl":
        if not path.exists():
            raise LabError(
                f"{source} does not exist", "", "name a folder below results/, or a stack", code="result-missing"
            )
        return story.of_result(path)
    from labctl.clock.clock import Clock
    from labctl.pages.live.lines import held_steps

    session, _, name = opt.open_stack(source)
    running = session.find(name)
    if not running:
        raise LabError(
            f"{name} is not up", "", f"labctl up {name}, or name a folder below results/", code="stack-not-up"
        )
    run_dir, models = session.workspace.folder(name).run_dir(), tuple(running.record.models)
    held = [
        {**state, "replica": story.replica_of(folder, run_dir)}
        for folder in run_folders(run_dir)
        for state in held_steps(Clock(folder, models))
    ]
    lanes = story.of_stack(run_dir, held)
    if not lanes:
        raise LabError(
            f"{name} has no step log yet",
            "no model of it has computed a step",
            f"labctl infer {name}",
            code="step-log-missing",
        )
    return lanes


def _longest(lanes: Sequence[InstanceSteps]) -> str:
    """The requests that waited longest: one of them may have been meant."""
    waits: Counter[str] = Counter()
    for lane in lanes:
        for line in lane.lines:
            waits.update(lane.names[id] for id in line["waiting"])
    if waits:
        longest = [f"{name} ({steps:,})" for name, steps in waits.most_common(SHOWN)]
        return f"the longest waits, in steps: {', '.join(longest)}"
    names = list(dict.fromkeys(lane.names[id] for lane in lanes for id in lane.requests()))[:SHOWN]
    return f"no request waited; it has {', '.join(names)}" if names else "it shows no request"


def _describe_wait(rows: Sequence[StoryEvent]) -> str:
    """How long a request waited, and how often it was preempted."""
    text = "did not wait"
    waited = [row for row in rows if row.what == "waits"]
    if steps := sum(row.last - row.first + 1 for row in waited):
        seconds = sum(row.seconds for row in waited)
        text = f"waited {steps:,} step{'s' if steps != 1 else ''}, {seconds:.3f} s"
    if preempted := sum(row.what == "preempted" for row in rows):
        text += f"; preempted {preempted} time{'s' if preempted != 1 else ''}"
    return text


def _step_range(row: StoryEvent) -> str:
    return f"{row.first}" if row.first == row.last else f"{row.first}-{row.last}"


def _lane(lane: InstanceSteps) -> dict[str, Any]:
    key = lane.key
    return {"model": key.model, "instance": key.instance, "phase": key.phase, "replica": key.replica}


def _row(row: StoryEvent) -> dict[str, Any]:
    return {
        "first_step": row.first,
        "last_step": row.last,
        "seconds": round(row.seconds, 6),
        "what": row.what,
        "why": row.why,
        "because": dict(row.because),
        "computed": row.computed,
        "new": row.made,
    }


@click.command("compare")
@click.argument("results", nargs=-1, required=True, type=opt.A_PATH)
@click.option("--all", "every", is_flag=True, help="Show every metric, not only those that matter most.")
@opt.as_json
def compare_command(results: tuple[Path, ...], every: bool, json_output: bool) -> None:
    """Show RESULTS side by side, with ratios to the first; or a prediction's error.

    RESULTS are folders, result.json files, or folders that a vLLM of your own records into.
    """
    from labctl.cli.predict import show_kept
    from labkit.compare import compare

    if not (results := show_kept(results, json_output)):
        return  # they were predictions
    if len(results) < 2:
        raise click.UsageError("name at least two results")
    outcome = compare(results)
    for reason in outcome.skipped:
        click.echo(f"skipped {printable(reason)}", err=True)
    if json_output:
        names = outcome.names
        columns = ["metric", *names, *(f"{name} / {names[0]}" for name in names[1:])]
        rows = [_ratios(key, values) for key, values in outcome.metrics.items()]
        click.echo(json.dumps([dict(zip(columns, row, strict=True)) for row in rows], indent=2))
        return
    labs = opt.open_session().catalog.labs
    judged = [verdict.value for lab in labs if lab.folder == outcome.lab for verdict in lab.verdicts]
    keys = list(outcome.metrics) if every else outcome.headlines(judged)
    numbers = [str(number) for number, _ in enumerate(outcome.names, 1)]
    for number, name in zip(numbers, outcome.names, strict=True):
        click.echo(f"  {number}  {printable(name)}")
    if outcome.settings:
        differing = [(key, *values) for key, values in outcome.settings.items()]
        click.echo("\n" + format_table(differing, ("settings that differ", *numbers)))
    else:
        click.echo("\nthe settings are the same")
    header = ("metric", *numbers, *(f"{number} / 1" for number in numbers[1:]))
    rows = [_ratios(key, outcome.metrics[key]) for key in keys]
    click.echo(f"\n{format_table(rows, header, right=range(1, len(header)))}")
    for sentence in outcome.remarks:
        say(f"\n{printable(sentence)}", hanging="")
    if len(keys) < len(outcome.metrics):
        click.echo(f"\n{len(keys)} of {len(outcome.metrics)} metrics; --all shows the rest")


def _ratios(key: str, values: Sequence[float]) -> list[str]:
    ratios = [f"{value / values[0]:.2f}" if values[0] else "-" for value in values[1:]]
    return [key, *(f"{value:,.4g}" for value in values), *ratios]
