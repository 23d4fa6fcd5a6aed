"""labctl reload, restart: the loop of a person who edits a lab's models."""

from __future__ import annotations

from datetime import datetime

import click

from labctl.cli import completion
from labctl.cli import options as opt
from labctl.cli.console import say
from labctl.stack import edits
from labctl.stack.replicas import DRAIN_S, replicas_in_words

timeout_option = opt.number_option(
    "--timeout", edits.LOAD_S, "Seconds to wait until a model is loaded.", opt.POSITIVE, metavar="S"
)
drain_option = opt.number_option(
    "--drain", DRAIN_S, "Seconds to wait until a replica has answered all.", click.FloatRange(min=0), metavar="S"
)


@click.command("reload")
@opt.stack_argument
@click.argument("model", required=False, shell_complete=completion.models)
@timeout_option
@opt.verbose
def reload_command(stack: str, model: str | None, timeout: float, verbose: bool) -> None:
    """Load the edited models of STACK (or MODEL) again, in place; the server and the other models stay."""
    session, lab, name = opt.open_stack(stack, verbose)
    loaded = edits.reload(session, lab, name, [model] if model else (), timeout)
    say(f"loaded: {', '.join(loaded)}" if loaded else "nothing was edited since it was loaded")


@click.command("restart")
@opt.stack_argument
@click.option("--rolling", "one_by_one", is_flag=True, help="One replica after the other; the others serve on.")
@drain_option
@opt.verbose
def restart_command(stack: str, one_by_one: bool, drain: float, verbose: bool) -> None:
    """Take STACK down and up again with the settings, runtime and ports that it has.

    If some replicas have died, only those are restarted.
    """
    from labctl.replicas.restart import restart, rolling

    session, lab, name = opt.open_stack(stack, verbose)
    record = rolling(session, lab, name, drain) if one_by_one else restart(session, lab, name)
    click.echo(f"{name} is ready again ({record.endpoints.http})")


@click.command("scale")
@opt.stack_argument
@click.argument("count", type=int, required=False)
@click.option("--auto", metavar="MIN:MAX", help="Follow the number of waiting requests, until Ctrl-C.")
@opt.number_option(
    "--target",
    "4",
    "With --auto: start another replica above N waiting for each, or below P% within --set slo.",
    click.STRING,
    "N|P%",
)
@drain_option
@opt.verbose
def scale_command(stack: str, count: int | None, auto: str | None, target: str, drain: float, verbose: bool) -> None:
    """Set the number of replicas of STACK while it serves, or let --auto follow the number of waiting requests."""
    from labctl.replicas import signals
    from labctl.replicas.scale import Scaler, autoscale, parse_bounds, scale

    if (count is None) == (auto is None):
        raise click.UsageError("name a number of replicas, or say --auto MIN:MAX")
    session, lab, name = opt.open_stack(stack, verbose)
    if auto:
        log = session.workspace.folder(name).scale_log
        scaler = Scaler(*parse_bounds(auto), **signals.parse_scale_target(target))
        for decision in autoscale(session, lab, name, scaler, patience=drain):
            line = f"{datetime.now().astimezone().isoformat(timespec='seconds')} {decision}"
            click.echo(line)
            with log.open("ab") as stream:
                stream.write(f"{line}\n".encode())
        return
    assert count is not None
    record = scale(session, lab, name, count, drain)
    click.echo(f"{name} has {replicas_in_words(len(record.servers))}")
