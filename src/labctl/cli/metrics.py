"""labctl metrics."""

from __future__ import annotations

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
@click.option("--watch", is_flag=True, help="Show what changes, every second, until Ctrl-C.")
def metrics_command(stack: str, watch: bool) -> None:
    """Show Triton's counters of STACK: mean time per request in the queue and in the model, and the mean batch."""
    session = opt.open_session()
    _, name = session.catalog.stack(stack)
    found = session.find(name)
    if not found:
        raise LabError(f"{name} is not up", "", f"labctl up {name}")
    endpoint = found[1].endpoints.metrics
    before = metrics.scrape(endpoint)
    click.echo(_table(before))
    while watch:
        time.sleep(1.0)
        now = metrics.scrape(endpoint)
        click.echo(f"\nin the last second\n{_table(now.since(before))}")
        before = now


def _table(snapshot: metrics.Snapshot) -> str:
    rows = []
    for name, m in sorted(snapshot.models.items()):
        requests = max(1.0, m.succeeded + m.failed)
        rows.append(
            (name, f"{m.succeeded:.0f}", f"{m.failed:.0f}", f"{m.inferences:.0f}", f"{m.exec_count:.0f}",
             f"{m.mean_batch:.2f}", f"{m.queue_us / requests / 1e3:.2f}", f"{m.compute_us / requests / 1e3:.2f}",
             f"{m.pending:.0f}")
        )  # fmt: skip
    return table(rows, HEADER, right=range(1, len(HEADER)))
