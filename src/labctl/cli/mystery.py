"""labctl mystery."""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from labctl.cli import options as opt
from labctl.cli.console import say
from labkit.errors import LabError
from labkit.printable import printable
from labkit.tables import format_table

if TYPE_CHECKING:
    from labctl.mystery.case import Case
    from labkit.predict.clinic import Fault

KINDS = ("step", "counter")
HEALTHY = "healthy"  # as labkit.predict.clinic has it, which is imported only when a command is called


@click.group("mystery")
def mystery_command() -> None:
    """Find the fault of a sick server from its telemetry.

    The server is the stack inflight-batching with one of the faults of `labctl mystery list` in its scheduler. You
    have its step log, live page, `labctl explain` and metrics, and not its source (docs/guide/mystery.md).
    """


@mystery_command.command("list")
@opt.as_json
def mystery_list_command(json_output: bool) -> None:
    """List the faults that a server may have."""
    faults = _sick(_faults())
    if json_output:
        click.echo(json.dumps({fault.name: fault.summary for fault in faults}, indent=1))
        return
    for fault in faults:
        say(f"{fault.name:<21} {fault.summary}", hanging=" " * 22)


@mystery_command.command("start")
@click.option(
    "--code", default="", metavar="CODE", help="The fault of this code; `healthy` has none. [default: random]"
)
@opt.runtime_option("Run the server in a container, or as a process of this machine.")
@opt.ports_option("As of labctl up.")
@opt.number_option("--replicas", None, "Start N servers: some faults need two.", click.IntRange(1, 8))
@opt.verbose
def start_(code: str, runtime: str, ports: str, replicas: int | None, verbose: bool) -> None:
    """Bring a sick server up, and send it a first load."""
    from labctl.mystery import case
    from labctl.options import Options

    session = opt.open_session(verbose)
    code = code if code == HEALTHY else code.upper() or case.draw_code(_faults(), replicas=replicas or 1)
    sick = case.start_case(session, code, Options(runtime=runtime, ports=ports, replicas=replicas))
    _load(sick)
    name = case.STACK
    say(f"\nThe server is up: stack {name}, code {code}. Look at it with")
    for command in (f"watch {name}", f"explain {name} REQUEST", f"metrics {name}", "mystery load", "mystery list"):
        say(f"  labctl {command}")
    say(f"Its step log is in .labs/{name}/run/. Then answer:")
    say("  labctl mystery answer NAME --evidence step=N")


@mystery_command.command("load")
def load_() -> None:
    """Send the sick server one more load."""
    from labctl.mystery import case

    _load(case.current_case(opt.open_session()))


@mystery_command.command("answer")
@click.argument("name", required=False)
@click.option(
    "--evidence", multiple=True, metavar="step=N|counter=METRIC", help="What shows the fault; may be repeated."
)
@click.option("--give-up", is_flag=True, help="Say which fault it is, and the steps that show it.")
@opt.as_json
@click.pass_context
def answer_(ctx: click.Context, name: str | None, evidence: Sequence[str], give_up: bool, json_output: bool) -> None:
    """Name the fault, and what shows it.

    Evidence is a step of the log, or a metric. The command exits with 1 unless the name and all evidence hold.
    """
    from labctl.mystery import case

    if give_up:
        _solve(case.current_case(opt.open_session()))
        return
    pieces = [case.Evidence(*piece.partition("=")[::2]) for piece in evidence]
    if not name or not pieces or any(piece.kind not in KINDS or not piece.which for piece in pieces):
        raise click.UsageError("an answer is NAME --evidence step=N, or --evidence counter=METRIC")
    sick = case.current_case(opt.open_session())
    judgements = sick.judge(name, pieces)
    right = all(judgement.holds for judgement in judgements)
    if json_output:
        click.echo(json.dumps([judgement._asdict() for judgement in judgements], indent=1))
    else:
        for judgement in judgements:
            mark = "holds" if judgement.holds else "wrong"
            say(f"{mark:<6} {judgement.what}: {printable(judgement.why)}", hanging=" " * 7)
        if right:
            say(f"\n{name}: {sick.fault.summary}\nlabctl mystery stop takes the server down.")
    if not right:
        ctx.exit(1)


@mystery_command.command("judge")
@click.argument("file", type=opt.A_FILE)
@click.option("--fault", "names", multiple=True, metavar="NAME", help="Only runs with this fault; may be repeated.")
@opt.number_option("--runs", 20, "Healthy runs, and sick runs of each fault.", click.IntRange(1, 1000))
@click.option("--seed", default="", metavar="WORD", help="Of the runs.  [default: a new one each time]")
@opt.as_json
def judge_(file: Path, names: Sequence[str], runs: int, seed: str, json_output: bool) -> None:
    """Judge your detector on recorded runs.

    FILE has a function sick(steps), which returns True or False. The table says how many sick runs it finds, and how
    many healthy ones it calls sick. No server is needed.
    """
    import dataclasses

    from labctl.mystery import case, detector

    faults = _faults()
    chosen = [case.find_fault(faults, name) for name in names] or _sick(faults)
    seed = seed or secrets.token_hex(4)
    scores = detector.judge_detector(
        file.resolve(), faults[HEALTHY], chosen, runs, seed, lambda name: say(f"  ..  {name}", err=True)
    )
    if json_output:
        click.echo(json.dumps({"seed": seed, "scores": [dataclasses.asdict(score) for score in scores]}, indent=1))
        return
    rows = [(score.fault, f"{score.found} of {runs}", f"{score.false} of {runs}") for score in scores]
    click.echo(format_table(rows, ("fault", "sick runs found", "healthy runs called sick"), right=(1, 2)))
    say(f"\nseed {seed}")


@mystery_command.command("record")
@click.argument("name")
@click.option("--seed", default="1", show_default=True, metavar="WORD", help="Of the load.")
def record_(name: str, seed: str) -> None:
    """Print the steps of a run in virtual time.

    NAME is a fault, or `healthy`. Each step is a line of JSON, as a detector gets it.
    """
    from labctl.mystery import case
    from labkit.predict import clinic

    for step in clinic.record_fault(case.find_fault(_faults(), name), seed):
        click.echo(json.dumps(step, separators=(",", ":")))


@mystery_command.command("code")
@click.argument("name")
def code_(name: str) -> None:
    """Print a code for the fault NAME.

    With `labctl mystery start --code CODE` all servers of a class have the same fault and load.
    """
    from labctl.mystery import case

    faults = _faults()
    click.echo(name if name == HEALTHY else case.draw_code(faults, case.find_fault(faults, name).name))


@mystery_command.command("stop")
@opt.verbose
def stop_(verbose: bool) -> None:
    """Take the sick server down, and forget its code."""
    from labctl.mystery import case

    stopped = case.stop_case(opt.open_session(verbose, whatever_is_broken=True))
    click.echo("the sick server is down" if stopped else "no sick server was up")


def _faults() -> dict[str, Fault]:
    from labctl.mystery import case
    from labctl.workspace import Workspace

    return case.find_faults(Workspace.find())


def _sick(faults: dict[str, Fault]) -> list[Fault]:
    return [fault for name, fault in faults.items() if name != HEALTHY]


def _load(sick: Case) -> None:
    listener = sick.session.listener
    listener.step("load")
    count = sick.load(lambda answered, count: listener.progress(f"{answered} of {count} answered"))
    listener.done(f"{count} requests")


def _solve(sick: Case) -> None:
    fault = sick.fault
    say(f"{fault.name}: {fault.summary}")
    shown = fault.shows(sick.steps())
    if len(shown) < fault.least:
        raise LabError("its log does not show it yet", "", "labctl mystery load", code="mystery-not-shown")
    numbers = ", ".join(str(step["n"]) for step in shown[:8])
    say(f"{len(shown)} steps show it, the first of them: {numbers}")
