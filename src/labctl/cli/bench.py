"""labctl bench."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from labctl.cli import options as opt
from labctl.cli.against import Sent, compared
from labctl.cli.dry import dry_option, show
from labctl.orchestrator.up import UpOptions
from labctl.tables import table
from labctl.workspace import atomic_write

COLUMNS = (
    "load",
    "tokens/s",
    "requests/s",
    "TTFT p50 ms",
    "TTFT p99 ms",
    "ITL p50 ms",
    "latency p99 ms",
    "mean batch",
)


def _numbers(ctx: click.Context, param: click.Parameter, value: str) -> list[int]:
    try:
        numbers = [int(item) for item in value.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 1:
        raise click.BadParameter("takes whole numbers of at least 1, such as 1,4,8")
    return numbers


@click.command("bench")
@opt.stack_argument
@opt.up_options
@click.option("-m", "--model", default="", help="The model to ask (default: the one that the lab names).")
@click.option("--dataset", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Prompts, as JSON.")
@click.option("--concurrency", default="1,4,8", show_default=True, callback=_numbers, metavar="N,N",
              help="Requests in flight, one measurement each.")  # fmt: skip
@click.option(
    "--request-rate",
    type=click.FloatRange(min=0, min_open=True),
    help="Requests per second, arriving at random; instead of --concurrency.",
)
@click.option("--request-count", type=click.IntRange(min=1), default=32, show_default=True)
@click.option("--warmup-request-count", type=click.IntRange(min=0), default=4, show_default=True)
@click.option("--output-tokens", type=click.IntRange(min=1), default=64, show_default=True)
@click.option("--random-seed", type=int, default=0, show_default=True)
@click.option("--goodput", type=float, metavar="MS", help="Count requests whose time to first token is at most this.")
@click.option("--against-engine", is_flag=True,
              help="Compare with the engine alone, without Triton, and say where the difference goes.")  # fmt: skip
@click.option("--rounds", type=click.IntRange(min=1), default=3, show_default=True,
              help="With --against-engine: measurements of each.")  # fmt: skip
@opt.replica_option
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write the result here too.")
@dry_option
@opt.verbose
def bench_command(
    stack: str, options: UpOptions, model: str, dataset: Path | None, concurrency: list[int],
    request_rate: float | None, request_count: int, warmup_request_count: int, output_tokens: int, random_seed: int,
    goodput: float | None, against_engine: bool, rounds: int, replica: int | None, json_file: Path | None, dry: bool,
    verbose: bool,
) -> None:  # fmt: skip
    """Measure STACK under load. If it is not up, it is brought up for the measurement and taken down after it."""
    from labctl.measure.workloads.bench import PROMPTS, Workload, prompts_from
    from labctl.orchestrator.bench import bench, chosen_model, dry_bench

    if request_rate and _given("concurrency"):
        raise click.UsageError("--concurrency and --request-rate are two kinds of load: give one of them")
    session = opt.open_session(verbose)
    lab, name = session.catalog.stack(stack)
    if against_engine:
        if other := [word for word in ("concurrency", "request_rate", "goodput") if _given(word)]:
            raise click.UsageError(f"--against-engine sends everything at once: without --{other[0].replace('_', '-')}")
        tokens = output_tokens if dataset or _given("output_tokens") else None
        compared(session, lab, name, options, model, Sent(dataset, request_count, tokens, random_seed), rounds,
                 json_file, dry)  # fmt: skip
        return
    model = chosen_model(lab, name, model)
    if dry:
        show(dry_bench(session, lab, name, options, model))
        return
    workload = Workload(
        prompts_from(dataset) if dataset else PROMPTS, output_tokens, request_count,
        warmup_request_count, request_rate, random_seed, goodput,
    )  # fmt: skip
    outcome = bench(session, lab, name, options, model, workload, concurrency, replica)
    rows = [_row(title, metrics) for title, metrics in outcome.metrics.items()]
    click.echo(table(rows, COLUMNS, right=range(1, len(COLUMNS))))
    if outcome.edited:
        click.echo(f"\nedited: {', '.join(outcome.edited)}")
    click.echo(f"\nresults in {outcome.folder}")
    if any("time_to_first_token" not in metrics for metrics in outcome.metrics.values()):
        click.echo(f"{model} answers whole: there is no first token to time")
    if json_file:
        atomic_write(json_file.absolute(), (outcome.folder / "result.json").read_bytes())


def _given(name: str) -> bool:
    return click.get_current_context().get_parameter_source(name) is not click.core.ParameterSource.DEFAULT


def _row(title: str, metrics: Mapping[str, Any]) -> tuple[str, ...]:
    def number(name: str, statistic: str, digits: int = 0) -> str:
        """A statistic, or "-" where the run has none: an answer that comes whole has no first token."""
        return f"{metrics[name][statistic]:.{digits}f}" if name in metrics else "-"

    return (
        title,
        f"{metrics['output_token_throughput']:.0f}",
        f"{metrics['request_throughput']:.2f}",
        number("time_to_first_token", "p50"),
        number("time_to_first_token", "p99"),
        number("inter_token_latency", "p50", 1),
        number("request_latency", "p99"),
        number("triton", "mean_batch", 1),
    )
