"""labctl metrics."""

from __future__ import annotations

import sys
import time

import click

from labctl.cli import options as opt
from labctl.errors import LabError
from labctl.measure.evidence import metrics
from labctl.tables import table

HEADER = (
    "model",
    "requests",
    "failed",
    "count",
    "exec_count",
    "mean batch",
    "queue ms",
    "compute ms",
    "pending",
)


@click.command("metrics")
@opt.stack_argument
@opt.replica_option
@click.option("--watch", is_flag=True, help="Show every second what has changed, until Ctrl-C.")
def metrics_command(stack: str, replica: int | None, watch: bool) -> None:
    """Show Triton's counters of STACK: mean time of a request in the queue and in the model, mean batch, KV cache.

    Those of all its replicas are added up. The exercise server is the STACK "exercise".
    """
    from labctl.learn import server

    session = opt.open_session()
    name = server.stack_named(session, stack)
    live = session.find(name)
    if not live:
        raise LabError(f"{name} is not up", "", f"labctl {'exercise check' if name == server.STACK else f'up {name}'}")
    endpoint = (live[1].only(replica) if replica else live[1]).asked["metrics"]
    before = metrics.scrape(endpoint)
    click.echo(shown(before))
    drawn = 0
    while watch:
        time.sleep(1.0)
        now = metrics.scrape(endpoint)
        text = f"\nin the last second\n{shown(now.since(before), busy=True)}\n"
        # In place: up to where the last one began, and away with it. A pipe gets one below the other.
        back = f"\x1b[{drawn}F\x1b[J" if drawn and sys.stdout.isatty() else ""
        click.echo(back + text, nl=False)
        drawn = text.count("\n")
        before = now


def shown(snapshot: metrics.Snapshot, busy: bool = False) -> str:
    """A snapshot as one table of Triton's counters and one of what our models count themselves.

    Args:
        busy: leave out the models that did nothing and have nothing to do.
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
        rows.append(
            (name, f"{m.succeeded:.0f}", f"{m.failed:.0f}", f"{m.inferences:.0f}", f"{m.exec_count:.0f}",
             f"{m.mean_batch:.2f}", f"{m.queue_us / requests / 1e3:.2f}", f"{m.compute_us / requests / 1e3:.2f}",
             f"{m.pending:.0f}")
        )  # fmt: skip
    parts = [table(rows, HEADER, right=range(1, len(HEADER)))]
    own = [
        (model, _words(metric), f"{value:.0f}")
        for (model, metric), value in sorted(snapshot.own.items())
        if model in models
    ]
    if own:
        parts.append(table(own, ("model", "its scheduler", "value"), right=(2,)))
    seen = [
        (model, _words(metric), f"{each.count:.0f}", *(_shown(metric, value) for value in
         (each.mean, each.quantile(0.5), each.quantile(0.99))))
        for (model, metric), each in sorted(snapshot.histograms.items())
        if model in models and each.count
    ]  # fmt: skip
    if seen:
        parts.append(table(seen, ("model", "as it saw", "times", "mean", "p50", "p99"), right=(2, 3, 4, 5)))
    return "\n\n".join(parts)


def _words(metric: str) -> str:
    for ending in ("_total", "_seconds"):
        metric = metric.removesuffix(ending)
    return metric.removeprefix(metrics.OWN).replace("_", " ")


def _shown(metric: str, value: float) -> str:
    return f"{value * 1e3:.1f} ms" if metric.endswith("_seconds") else f"{value:.1f}"
