"""labctl metrics."""

from __future__ import annotations

import math
import sys
import time
from contextlib import nullcontext

import click

from labctl.cli import options as opt
from labctl.cli.console import say
from labctl.stack.stack import RunningStack
from labkit.client import metrics
from labkit.tables import format_table
from labsched.printable import printable

CANCELED = (
    "A model that gives requests back after each step has every hand-over counted by Triton as a request, also of "
    "those that found no slot: its mean batch may be larger than what fits (see batch size below), and the end of each "
    "request counts as canceled. Of any other model, a canceled request is one whose client went away."
)
SAMPLED = (
    "seen: samples, at most 16 in a quarter of a second; p50 and p99 are estimates within the histogram's buckets."
)
HEADER = ("model", "requests", "failed", "count", "exec count", "mean batch", "queue ms", "compute ms", "pending")


@click.command("metrics")
@opt.maybe_stack
@opt.endpoint_option("metrics")
@opt.replica_option
@click.option("-f", "--follow", is_flag=True, help="Show every second what has changed, until Ctrl-C.")
def metrics_command(stack: str | None, endpoint: str | None, replica: int | None, follow: bool) -> None:
    """Show Triton's counters of STACK, or of any server.

    Mean time of a request in the queue and in the model, mean batch, KV cache. Those of all replicas are added up.
    The exercise server is the STACK "exercise".
    """
    from labctl.learn import server

    opt.require_named(stack, endpoint)
    if not endpoint:
        assert stack  # require_named
        session = opt.open_session()
        record = RunningStack.require_up(session, server.resolve_stack(session, stack)).record
        endpoint = (record.only(replica) if replica else record).scrape_endpoints["metrics"]
    before = metrics.scrape(endpoint)
    say(printable(describe_snapshot(before)), hanging="")
    if follow:
        _follow(endpoint, before)


def _follow(endpoint: str, before: metrics.Snapshot) -> None:
    """What each second changes: in place on a terminal, which a table that is too tall ends in "..."."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    # A console of its own: rich's shared one keeps what the terminal was when it was first used.
    live = None
    if sys.stdout.isatty():
        live = Live(console=Console(), auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
    with live or nullcontext():
        while True:
            time.sleep(1.0)
            now = metrics.scrape(endpoint)
            text = printable(f"\nin the last second\n{describe_snapshot(now.since(before), busy=True)}")
            if live:
                live.update(Text(text), refresh=True)
            else:
                click.echo(f"{text}\n")
            before = now


def describe_snapshot(snapshot: metrics.Snapshot, busy: bool = False) -> str:
    """A snapshot as one table of Triton's counters and one of what our models count themselves.

    ``busy``: leave out the models that did nothing and have nothing to do.
    """
    models = {
        name: m
        for name, m in sorted(snapshot.models.items())
        if not busy or m.succeeded or m.failed or m.inferences or m.pending
    }
    if busy and not models:
        return "nothing: no model was asked"
    rows = []
    for name, m in models.items():
        requests = max(1.0, m.succeeded + m.failed)
        counts = [f"{count:.0f}" for count in (m.succeeded, m.failed, m.inferences, m.exec_count)]
        times = [f"{us / requests / 1e3:.2f}" for us in (m.queue_us, m.compute_us)]
        rows.append((name, *counts, f"{m.mean_batch:.2f}", *times, f"{m.pending:.0f}"))
    parts = [format_table(rows, HEADER, right=range(1, len(HEADER)))]
    if canceled := [f"{m.canceled:.0f} of {name}" for name, m in models.items() if m.canceled]:
        parts.append(f"canceled: {', '.join(canceled)}\n{CANCELED}")
    counted = [(*key, value) for key, value in sorted(snapshot.own.items()) if key[0] in models]
    if own := [(model, _words(metric), f"{value:.0f}") for model, metric, value in counted]:
        parts.append(format_table(own, ("model", "its scheduler", "value"), right=(2,)))
    seen = []
    for (model, metric), histogram in sorted(snapshot.histograms.items()):
        if model in models and histogram.count:
            mean = _format_value(metric, histogram.mean)
            quantiles = [_quantile(metric, histogram.quantile(share)) for share in (0.5, 0.99)]
            seen.append((model, _words(metric), f"{histogram.count:.0f}", mean, *quantiles))
    if seen:
        parts.append(format_table(seen, ("model", "as it saw", "seen", "mean", "p50", "p99"), right=(2, 3, 4, 5)))
        parts.append(SAMPLED)
    return "\n\n".join(parts)


def _words(metric: str) -> str:
    for ending in ("_total", "_seconds"):
        metric = metric.removesuffix(ending)
    return metric.removeprefix(metrics.OWN).replace("_", " ")


def _format_value(metric: str, value: float) -> str:
    return f"{value * 1e3:.1f} ms" if metric.endswith("_seconds") else f"{value:.1f}"


def _quantile(metric: str, value: float) -> str:
    """An estimate within a bucket; of what is counted (requests, tokens) the next whole number, as it may have been."""
    return _format_value(metric, value) if metric.endswith("_seconds") else f"{math.ceil(value)}"
