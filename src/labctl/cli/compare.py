"""labctl compare."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import click

from labctl.cli import options as opt
from labctl.cli.console import say
from labkit.printable import printable
from labkit.tables import table


@click.command("compare")
@click.argument("results", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--all", "every", is_flag=True, help="Show every metric, not only the ten that matter most.")
@opt.as_json
def compare_command(results: tuple[Path, ...], every: bool, json_output: bool) -> None:
    """Show RESULTS (folders or result.json files) side by side, with ratios to the first."""
    from labkit.compare import compare

    if len(results) < 2:
        raise click.UsageError("name at least two results")
    outcome = compare(results)
    for reason in outcome.skipped:
        click.echo(f"skipped {printable(reason)}", err=True)
    if json_output:
        names = outcome.names
        columns = ["metric", *names, *(f"{name} / {names[0]}" for name in names[1:])]
        rows = [_row(key, values) for key, values in outcome.metrics.items()]
        click.echo(json.dumps([dict(zip(columns, row, strict=True)) for row in rows], indent=2))
        return
    labs = opt.open_session().catalog.labs
    judged = [verdict.value for lab in labs if lab.folder == outcome.lab for verdict in lab.verdicts]
    keys = list(outcome.metrics) if every else outcome.headlines(judged)
    numbers = [str(number) for number, _ in enumerate(outcome.names, 1)]
    click.echo("\n".join(f"  {number}  {printable(name)}" for number, name in zip(numbers, outcome.names, strict=True)))
    if outcome.settings:
        differing = [(key, *values) for key, values in outcome.settings.items()]
        click.echo("\n" + table(differing, ("settings that differ", *numbers)))
    else:
        click.echo("\nthe settings are the same")
    header = ("metric", *numbers, *(f"{number} / 1" for number in numbers[1:]))
    click.echo("\n" + table([_row(key, outcome.metrics[key]) for key in keys], header, right=range(1, len(header))))
    for sentence in outcome.remarks:
        say(f"\n{printable(sentence)}", hanging="")
    if len(keys) < len(outcome.metrics):
        click.echo(f"\n{len(keys)} of {len(outcome.metrics)} metrics; --all shows the rest")


def _row(key: str, values: Sequence[float]) -> list[str]:
    ratios = [f"{value / values[0]:.2f}" if values[0] else "-" for value in values[1:]]
    return [key, *(f"{value:,.4g}" for value in values), *ratios]
