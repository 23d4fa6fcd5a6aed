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
@click.option("--watch", is_flag=True, help="Show every second what has changed, until Ctrl-C.")
def metrics_command(stack: str, watch: bool) -> None:
    """Show Triton's counters of STACK: mean time of a request in the queue and in the model, mean batch, KV cache."""
    session = opt.open_session()
    _, name = session.catalog.stack(stack)
    live = session.find(name)
    if not live:
        raise LabError(f"{name} is not up", "", f"labctl up {name}")
    endpoint = live[1].endpoints.metrics
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
    text = table(rows, HEADER, right=range(1, len(HEADER)))
    own = [
        (model, metric.removeprefix("labs_").removesuffix("_total").replace("_", " "), f"{value:.0f}")
        for (model, metric), value in sorted(snapshot.own.items())
        if model in models
    ]
    return text + "\n\n" + table(own, ("model", "its scheduler", "value"), right=(2,)) if own else text
