"""labctl explain and labctl compare: what results say of a request, and beside one another."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from labctl.cli import completion
from labctl.cli import options as opt
from labctl.cli.console import Console, say
from labctl.stack.stack import RunningStack
from labkit.errors import LabError
from labkit.evidence.steplog import run_folders
from labkit.tables import format_table
from labsched.printable import printable

if TYPE_CHECKING:
    from labctl.pages.live.parting import Parting
    from labctl.pages.live.story import InstanceSteps, StoryEvent
    from labsched.explain.causes import ExplainedRequest
    from labsched.explain.explanation import Called, Explanation
    from labsched.replay.answer import Predictor
    from labsched.replay.recording import Recording

SHOWN = 5  # requests that an error names


@click.command("explain")
@click.argument("source", metavar="RESULT|STACK|URL", shell_complete=completion.stacks_or_files)
@click.argument("request_or_b", metavar="[REQUEST]", default="")
@click.option("--diff", is_flag=True, help="Show the first step at which two runs of the same requests part.")
@click.option("--phase", metavar="NAME", help="Without REQUEST: the phase to explain (steps-NAME.jsonl).")
@click.option(
    "--picture",
    type=opt.FILE,
    metavar="FILE.png",
    help="Without REQUEST: also draw the parts at each percentile, and the worst second.",
)
@click.option("--from", "start", metavar="TIME", help="Without REQUEST: leave out requests that came before TIME.")
@click.option("--to", "end", metavar="TIME", help="Without REQUEST: leave out requests that came at TIME or later.")
@click.option(
    "--client",
    type=opt.A_FILE,
    metavar="FILE",
    help="Without REQUEST: join what the client saw: requests.jsonl of labctl bench, or the JSON of vllm bench serve "
    "--save-result --save-detailed.",
)
@click.option("--window", type=opt.POSITIVE, metavar="SECONDS", help="With URL: how long to look on; 60 if not given.")
@opt.as_json
def explain_command(
    source: str,
    request_or_b: str,
    diff: bool,
    phase: str | None,
    picture: Path | None,
    start: str | None,
    end: str | None,
    client: Path | None,
    window: float | None,
    json_output: bool,
) -> None:
    """Show what the slowest requests of RESULT waited for, or why REQUEST waited, step by step.

    RESULT is a folder below results/, one phase of it (steps-PHASE.jsonl), or the folder that a vLLM of your own
    records into. STACK is a stack that is up; it needs a REQUEST: its name on the pages (A, B, C ... in order of
    arrival), its id in the step log, or the name that the run's own client gave it (requests.jsonl; vLLM's id).
    --diff takes two of RESULT and STACK instead. URL is the /metrics of a vLLM that runs: a weaker answer, without a
    recording.

    TIME is a number of seconds since the first request, or a time of day (14:02, 14:02:30, 2026-11-28T14:02).
    """
    from labsched.vllm.metrics import is_metrics_url

    if is_metrics_url(source):
        if request_or_b or diff or phase or picture or start or end or client:
            raise click.UsageError("of the options, a URL takes --window and --json alone")
        _show_metrics(source, window, json_output)
    elif window:
        raise click.UsageError("--window needs the URL of a page of metrics")
    elif diff:
        _show_parting(source, request_or_b, json_output)
    elif _is_result(request_or_b):
        raise click.UsageError(
            f"{request_or_b} is a result, not a request of {source}; to compare the two: labctl explain --diff, "
            "or labctl compare"
        )
    elif request_or_b:
        _show_story(request_or_b, source, json_output)
    else:
        _show_causes(Path(source), phase, picture, (start, end), client, json_output)


def _show_metrics(url: str, window: float | None, json_output: bool) -> None:
    """Where the time of a request went, by what vLLM counts."""
    from labsched.vllm.metrics import explain_metrics

    console = Console()
    console.step("vLLM's metrics")
    found = explain_metrics(url, window, console.progress)
    console.settle()
    if json_output:
        click.echo(json.dumps(found, indent=2))
        return
    for sentence in found["sentences"]:
        say(printable(f"{sentence}\n"))


def _is_result(word: str) -> bool:
    """Whether an argument names a folder with a recording, or a file of one, and so no request."""
    path = Path(word)
    return path.suffix == ".jsonl" or (bool(word) and path.is_dir() and any(path.glob("*.jsonl")))


def _show_causes(
    result: Path,
    phase: str | None,
    picture: Path | None,
    window: tuple[str | None, str | None],
    client: Path | None,
    json_output: bool,
) -> None:
    """Who got no token, the largest parts of TTFT and TPOT, who is in the way, and what would change it."""
    from labsched.explain.result import explain_result

    console = Console()
    answer = explain_result(result, phase, *window, client, _naming, _predicting(console), console.progress)
    if answer.tried and answer.told.recordings[0].settings.vllm:
        console.done(f"{len(answer.tried)} settings")
    console.settle()
    if picture:
        _draw(answer.told, picture, str(result))
    if json_output:
        click.echo(json.dumps(answer.to_json(), indent=2))
        return
    for number, paragraph in enumerate(answer.paragraphs(partial(format_table, right=(1, 2, 3)))):
        say(printable(f"\n{paragraph}" if number else paragraph))
    if picture:
        say(printable(f"\nwritten: {picture}"))
    if at := answer.slowest:
        told = answer.told
        say(printable(f"\nstep by step: labctl explain {_source(result, told, at)} {told.called(at).split()[0]}"))


def _predicting(console: Console) -> Callable[[Recording], Predictor] | None:
    """What replays a recording of vLLM by vLLM's own scheduler; None: that is not installed."""
    from labctl.runtimes.layers import layer
    from labctl.workspace import Workspace

    vllm = layer("vllm", Workspace.find())
    if not vllm.ready:
        return None

    def predictor(read: Recording) -> Predictor:
        from labctl.recordings.vllm import VllmReplays
        from labsched.replay import answer
        from labsched.replay.vllm_scheduler import change_vllm_settings

        change_vllm_settings(read.settings, {})  # what cannot be replayed is refused before vLLM is started
        console.step("settings replayed by vLLM's scheduler")
        replays = click.get_current_context().with_resource(VllmReplays(vllm.path))
        return answer.Predictor.of(read, replayed=replays.replay, changed=change_vllm_settings)

    return predictor


def _naming(read: Sequence[Recording]) -> Called:
    """What the pages call the requests of a server's engines."""
    from labctl.pages.live import story
    from labkit.evidence.names import Numbered

    letters: dict[str, str] = Numbered()
    if not read[0].settings.vllm:
        letters = {}
        for lane in story.of_result(Path(read[0].source)):
            letters |= lane.names

    def called(request: ExplainedRequest) -> str:
        name = letters[request.name] if isinstance(letters, Numbered) else letters.get(request.name, request.name)
        return f"{name} of engine {request.engine}" if len(read) > 1 else name

    return called


def _engine_of(told: Explanation, request: ExplainedRequest) -> Recording:
    return next(recording for recording in told.recordings if recording.engine == request.engine)


def _source(result: Path, told: Explanation, request: ExplainedRequest) -> str:
    """What `labctl explain SOURCE REQUEST` finds the request in: the newest recording of a folder, or a file."""
    from labsched.vllm import reader

    recording = _engine_of(told, request)
    if not reader.is_recording(result) or not result.is_dir() or recording.name == reader.latest_recording(result):
        return recording.source
    return str(reader.recordings_in(result)[recording.name or ""][-1])


def _draw(told: Explanation, picture: Path, title: str) -> None:
    """The picture of all requests, with the worst second of the engine that had the slowest."""
    from labctl.recordings.picture import draw_explanation
    from labsched.explain.findings import at_percentile

    recording = _engine_of(told, at_percentile(told.requests, "TTFT", 99))
    names = {request.name: told.called(request) for request in told.requests if request.engine == recording.engine}
    draw_explanation(told.requests, recording, picture, title, names)


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
    from labctl.clock import Clock
    from labctl.pages.live.lines import held_steps

    session, _, name = opt.open_stack(source)
    running = RunningStack.find(session, name)
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
    from labctl.labs.compare import compare

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
    keys = list(outcome.metrics) if every else outcome.headlines()
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
