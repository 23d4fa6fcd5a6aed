"""labctl bench."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from labctl.cli import options as opt
from labctl.cli.console import Console, say, say_folder
from labctl.labs.compare import EQUAL_LENGTHS
from labctl.options import Options
from labkit.tables import format_table
from labsched.printable import printable

if TYPE_CHECKING:
    from labctl.labs.bench import BenchResult, Items
    from labctl.labs.overhead import OverheadComparison
    from labctl.labs.workloads import Workload
    from labkit.client.dataset import Count
    from labsched.replay.recording import Arrival

COLUMNS = ("part", "served, s", "alone, s", "difference, s", "of it")  # of --against-engine
AT_LEAST_1 = click.IntRange(min=1)
NOT_WITH_ENGINE = ("concurrency", "request_rate", "slo", "price_per_hour")
NOT_WITH_ENDPOINT = ("against_engine", "replica", "pairs", "runtime", "ports", "replicas", "balance")
FOR_TRACE = ("speed", "block_size", "unit")
NOT_WITH_TRACE = ("dataset", "concurrency", "request_rate", "output_tokens", "against_engine")


def _numbers(ctx: click.Context, param: click.Parameter, value: str) -> list[int]:
    try:
        numbers = [int(item) for item in value.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 1:
        raise click.BadParameter("takes whole numbers of at least 1, such as 1,4,8")
    return numbers


@dataclass(frozen=True)
class _LoadOptions:
    """What `labctl bench` sends: which prompts, how many requests and when, and what they are held to."""

    dataset: Path | None
    trace: Path | None
    block_size: int | None
    unit: str | None
    speed: float
    concurrency: list[int]
    request_rate: float | None
    request_count: int
    warmup_request_count: int
    output_tokens: int
    random_seed: int
    slo: str | None
    price_per_hour: float | None

    def prompts(self) -> list[str] | None:
        """Those of ``dataset``; None without one. Raises LabError."""
        from labctl.labs.workloads import prompts_from

        return prompts_from(self.dataset) if self.dataset else None

    def workload(self, prompts: Sequence[str] | None) -> Workload:
        """The load with these prompts, or the labs' own. Raises LabError for a trace or limits that cannot be read."""
        from labctl.labs.workloads import PROMPTS, Workload
        from labsched.replay.slo import Slo

        return Workload(
            PROMPTS if prompts is None else prompts,
            self.output_tokens,
            self.request_count,
            self.warmup_request_count,
            self.request_rate,
            self.random_seed,
            Slo.parse(self.slo) if self.slo else None,
            trace=self._arrivals(),
            price=self.price_per_hour,
        )

    def _arrivals(self) -> Sequence[Arrival]:
        """The requests of ``trace``, at the times that ``speed`` makes of theirs; () without one."""
        from labctl.labs import traces

        if not self.trace:
            return ()
        form = traces.MooncakeForm(self.block_size, self.unit)
        arrivals = traces.read_trace(self.trace, self.request_count, opt.say_left_out, form)
        click.echo(f"  --  {printable(str(self.trace))}: {traces.describe_trace(arrivals)}", err=True)
        return [replace(arrival, at=arrival.at / self.speed) for arrival in traces.scale_lengths(arrivals)]

    @property
    def is_open_loop(self) -> bool:
        """Requests come at times of their own, whatever is still on its way."""
        return bool(self.request_rate or self.trace)

    @property
    def traced(self) -> str | None:
        """The trace in words."""
        return f"{self.trace.name}, {self.speed:g} times as fast" if self.trace else None


@dataclass(frozen=True)
class _MethodOptions:
    """How `labctl bench` measures: all servers or one ``replica``, or beside the bare engine."""

    against_engine: bool
    rounds: int
    replica: int | None


@click.command("bench")
@opt.maybe_stack
@opt.endpoint_option("gRPC")
@click.option(
    "--metrics-endpoint",
    "counters",
    type=opt.Endpoint(),
    help="With --endpoint: also what that server counts; without it the mean batch is not known.",
)
@opt.up_options
@opt.model_option
@opt.gathered(
    "load",
    _LoadOptions,
    click.option("--dataset", type=opt.A_FILE, metavar="FILE", help="A JSON file with the prompts to send."),
    click.option(
        "--trace",
        type=opt.FILE,
        metavar="FILE",
        help="Send the first --request-count requests of a trace at its times: a CSV of your own with the columns "
        "arrival_s, prompt_tokens and output_tokens, or a trace of Mooncake. Lengths are divided by 16.",
    ),
    opt.block_size_option,
    opt.unit_option,
    opt.number_option("--speed", 1.0, "With --trace: send X times as fast.", opt.POSITIVE, metavar="X"),
    click.option(
        "--concurrency",
        default="1,4,8",
        show_default=True,
        callback=_numbers,
        metavar="N,N",
        help="Requests in flight; each number is a measurement.",
    ),
    opt.number_option(
        "--request-rate",
        None,
        "Send R requests per second, with random gaps, instead of keeping --concurrency in flight.",
        opt.POSITIVE,
        metavar="R",
    ),
    opt.number_option("--request-count", 32, "Requests in a measurement.", AT_LEAST_1),
    opt.number_option(
        "--warmup-request-count",
        4,
        "Requests before the first measurement, which are not counted.",
        click.IntRange(min=0),
    ),
    opt.number_option("--output-tokens", 64, "Tokens to generate for each request.", AT_LEAST_1),
    opt.number_option(
        "--random-seed", 0, "Seed for the gaps of --request-rate, and the requests of --against-engine.", click.INT
    ),
    click.option("--slo", metavar="LIMITS", help=f"Add goodput. {opt.SLO_HELP}"),
    opt.number_option(
        "--price-per-hour",
        None,
        "Add what a million output tokens cost (with --slo: of the requests within it), when this machine costs P an "
        "hour.",
        opt.POSITIVE,
        "P",
    ),
)
@opt.gathered(
    "method",
    _MethodOptions,
    click.option(
        "--against-engine",
        is_flag=True,
        help="Compare with the engine alone, without Triton, and say where the difference goes.",
    ),
    opt.number_option("--rounds", 3, "With --against-engine: measurements of each side.", AT_LEAST_1),
    opt.replica_option,
)
@opt.result_output
@opt.verbose
def bench_command(
    stack: str | None,
    endpoint: str | None,
    counters: str | None,
    options: Options,
    model: str | None,
    load: _LoadOptions,
    method: _MethodOptions,
    shown: opt.ResultOutput,
    verbose: bool,
) -> None:
    """Measure STACK under load. A stack that is down is brought up for the measurement, and taken down after it.

    With --endpoint any server is measured as it is, and nothing is written but --output. Its tokens are counted with
    the tokenizer that its configuration names (tokenizer_dir); where that is not seen from here, responses are counted.
    """
    from labctl.labs import bench as benches

    _refuse_together(load, method)
    prompts = load.prompts()
    workload = load.workload(prompts)
    opt.require_named(stack, endpoint)
    if endpoint:
        endpoints = {"grpc": endpoint} | ({"metrics": counters} if counters else {})
        _measure_there(endpoints, opt.model_there(stack, model, "bench"), workload, load.concurrency, shown)
        return
    assert stack  # require_named
    session, lab, name = opt.open_stack(stack, verbose)
    if method.against_engine:
        tokens = load.output_tokens if load.dataset or _is_given("output_tokens") else None
        sent = _items(prompts, load.request_count, tokens, load.random_seed)
        outcome = benches.against_engine(session, lab, name, options, sent, method.rounds, model)
    else:
        model = benches.chosen_model(lab, name, model)
        outcome = benches.bench_stack(
            session, lab, name, options, model, workload, load.concurrency, method.replica, load.traced
        )
    shown.write((outcome.folder / "result.json").read_text())
    if shown.json_output:
        return
    notes: Sequence[str] = ()
    if outcome.comparison:
        say(account(outcome.comparison))
    elif model:
        _show_metrics(outcome.metrics)
        notes = _table_notes(model, outcome, load.is_open_loop, load.concurrency, load.price_per_hour)
    say_folder(outcome.folder, outcome.edited)
    for sentence in notes:
        say(sentence)


def _refuse_together(load: _LoadOptions, method: _MethodOptions) -> None:
    """Raises UsageError for options of which one leaves the other no meaning."""
    if _is_given("request_rate") and _is_given("concurrency"):
        raise click.UsageError("--concurrency and --request-rate are two kinds of load: give one of them")
    if load.trace and (other := _first_given(NOT_WITH_TRACE)):
        raise click.UsageError(f"--trace brings its own times and lengths: without {other}")
    if not load.trace and (other := _first_given(FOR_TRACE)):
        raise click.UsageError(f"{other} is for --trace")
    if method.against_engine and (other := _first_given(NOT_WITH_ENGINE)):
        raise click.UsageError(f"--against-engine sends everything at once: without {other}")


def _measure_there(
    endpoints: Mapping[str, str], model: str, workload: Workload, concurrency: Sequence[int], shown: opt.ResultOutput
) -> None:
    """Measure a server that somebody else has started."""
    from labctl.labs.bench import bench_there

    if other := _first_given(NOT_WITH_ENDPOINT):
        raise click.UsageError(f"--endpoint measures a server as it is: without {other}")
    metrics, records = bench_there(endpoints, model, workload, concurrency, Console())
    shown.write(json.dumps({"metrics": metrics, "requests": [vars(record) for record in records]}))
    if not shown.json_output:
        _show_metrics(metrics)
        if any("response_throughput" in figures for figures in metrics.values()):
            say(f"{model} is measured in responses: its tokenizer is not known here, so its tokens cannot be counted")


def _show_metrics(metrics: Mapping[str, Any]) -> None:
    """The table of all phases."""
    from labctl.labs.workloads import tabulate

    header, rows = tabulate(metrics)
    click.echo(format_table(rows, header, right=range(1, len(header))))


def _items(prompts: Sequence[str] | None, requests: int, tokens: int | None, seed: int) -> Items:
    """The workload: chat-like unless there are prompts; without ``tokens`` the answers have chat-like lengths."""
    from labkit.client.dataset import Item, make_chats

    def make_items(count: Count) -> list[Item]:
        if prompts is None:
            items = make_chats(count, requests, seed)
        else:
            items = [Item(prompt, 1) for prompt in prompts[:requests]]
        return [Item(item.prompt, tokens or item.output_tokens) for item in items]

    return make_items


def account(found: OverheadComparison) -> str:
    """The table of where the time goes, what a step is made of, and the sentence."""
    from labctl.labs.overhead import PARTS

    through, bare = found.means
    lost = found.differences
    whole = sum(lost.values())
    rows = []
    for part, title in PARTS.items():
        share = f"{lost[part] / whole:.0%}" if whole > 0 else ""
        seconds = (f"{through.parts[part]:.3f}", f"{bare.parts[part]:.3f}", f"{lost[part]:+.3f}")
        rows.append((title, *seconds, share))
    rows.append(("all", f"{through.seconds:.3f}", f"{bare.seconds:.3f}", f"{whole:+.3f}", ""))
    steps = [
        f"{name}: {side.steps:.0f} steps of {side.step_ms:.1f} ms in the engine, {side.scheduling_share:.1%} of a step "
        f"is scheduling, answering and recording, {side.idle_ms:.2f} ms between two"
        for name, side in (("served", through), ("alone", bare))
    ]
    return "\n".join([format_table(rows, COLUMNS, right=range(1, 5)), "", *steps, "", found.sentence()])


def _table_notes(
    model: str, outcome: BenchResult, open_loop: bool, concurrency: Sequence[int], price: float | None = None
) -> list[str]:
    """What a person has to know to read the table."""
    from labctl.labs.workloads import cost_note

    sentences = []
    if any("time_to_first_token" not in metrics for metrics in outcome.metrics.values()):
        sentences.append(f"{model} answers whole: there is no first token to time")
    if price:
        sentences.append(cost_note(price))
    if outcome.paced:
        sentences.append(outcome.paced)
    for metrics in outcome.metrics.values():
        if left := metrics.get("left_out"):
            sentences.append(f"requests that do not fit in the model's context, and are not sent: {left}")
    if counted := [metrics for metrics in outcome.metrics.values() if {"scheduler", "triton"} <= metrics.keys()]:
        own = max(metrics["scheduler"]["mean_batch"] for metrics in counted)
        tritons = max(metrics["triton"]["mean_batch"] for metrics in counted)
        sentences.append(
            "mean batch: requests in a step, as the model's own scheduler counts them (a sample of its steps)"
        )
        if f"{own:.1f}" != f"{tritons:.1f}":
            sentences.append(
                f"(Triton counts up to {tritons:.1f} in an execution: also those that the model gives back unserved, "
                "or serves in many steps)"
            )
    if outcome.scheduling == "dynamic" and not open_loop and max(concurrency) > 1:
        sentences.append(f"this load suits {model}: {EQUAL_LENGTHS}")
    return sentences


def _is_given(parameter: str) -> bool:
    """Whether a person has chosen the parameter of that name, also by an environment variable."""
    return click.get_current_context().get_parameter_source(parameter) is not ParameterSource.DEFAULT


def _first_given(parameters: Sequence[str]) -> str | None:
    """Return the first of these parameters that a person has chosen, as it is typed ("--request-rate")."""
    options = {parameter.name: parameter.opts[0] for parameter in click.get_current_context().command.params}
    return next((options[name] for name in parameters if _is_given(name)), None)
