"""labctl arena."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from labctl.cli import options as opt
from labctl.cli.console import say
from labctl.litter import files_in
from labkit.errors import LabError
from labkit.printable import printable
from labkit.tables import format_table

if TYPE_CHECKING:
    from labkit.predict.referee import Standing
    from labsched.recording import Arrival

BEST = 3
HEADER = (
    "policy",
    "goodput /s",
    "TTFT p99 ms",
    "recomputed tokens",
    "cached tokens",
    "service gap",
    "worst slowdown",
    "steps",
)
FIGURES = ("recomputed_tokens", "service_gap", "worst_slowdown", "ttft_p99_ms")  # of labkit.predict.attack.LEAST


@click.group("arena")
def arena_command() -> None:
    """Play scheduling policies against each other in virtual time.

    POLICY is the name of a shipped one, or a file of yours with any of the functions places, line, reserve and victim
    (docs/guide/arena.md).
    """


@arena_command.command("list")
@opt.as_json
def arena_list_command(json_output: bool) -> None:
    """List the shipped policies, each with what it does."""
    policies = {path.stem: _summary(path) for path in files_in(_folder(), "*.py")}
    if json_output:
        click.echo(json.dumps(policies, indent=1))
        return
    for name, summary in policies.items():
        say(f"{name:<22} {summary}", hanging=" " * 23)


@arena_command.command("run")
@click.argument("policies", nargs=-1, metavar="[POLICY]...")
@click.option("--seed", default="1", metavar="WORD", help="Of the hidden traces; an instructor keeps one.")
@click.option("--public", is_flag=True, help="Only the six traces that everybody sees.")
@click.option("--real", is_flag=True, help="Play on Triton too, by default the three that were best in virtual time.")
@click.option("--trace", "only", multiple=True, metavar="NAME", help="Only this trace; may be repeated.")
@opt.as_json
def run_(policies: Sequence[str], seed: str, public: bool, real: bool, only: Sequence[str], json_output: bool) -> None:
    """Play each POLICY, or all shipped ones, on 6 public and 20 hidden traces.

    There is no score: goodput is the mean over the traces, recomputed and cached tokens and steps are sums, and
    the others are the worst of all traces.
    """
    from labkit.predict import games

    paths = [_path(name) for name in policies] or files_in(_folder(), "*.py")
    traces = {**games.public_traces(), **({} if public else games.hidden_traces(seed))}
    if unknown := [name for name in only if name not in traces]:
        raise LabError(
            f"there is no trace {unknown[0]}", f"there are {', '.join(traces)}", "", code="arena-trace-unknown"
        )
    traces = {name: trace for name, trace in traces.items() if name in (only or traces)}
    if real and policies:
        _run_real(paths, traces, json_output)
        return
    standings = _judged(paths, traces)
    if real:
        _run_real([_path(standing.name) for standing in _best_first(standings)[:BEST]], traces, json_output)
        return
    if json_output:
        documents = [
            {
                "policy": standing.name,
                "disqualified": standing.foul,
                "why": standing.why,
                "trace": standing.trace,
                "games": dict(standing.games),
            }
            for standing in standings
        ]
        click.echo(json.dumps(documents, indent=1))
        return
    _show(standings)


@arena_command.command("attack")
@click.argument("policy")
@click.option("--figure", type=click.Choice(FIGURES), default=FIGURES[0], show_default=True, help="What to make bad.")
@click.option("--against", default="fcfs", show_default=True, metavar="POLICY", help="The policy to compare with.")
@opt.number_option("--times", 1.5, "How many times the other policy's figure.", opt.POSITIVE, metavar="X")
@opt.number_option("--seconds", 20.0, "How long to look.", opt.POSITIVE, metavar="S")
@opt.number_option("--random-seed", 0, "Seed of the search.", click.INT)
@opt.as_json
def attack_(
    policy: str, figure: str, against: str, times: float, seconds: float, random_seed: int, json_output: bool
) -> None:
    """Look for the smallest trace on which POLICY is much worse than another one."""
    from labkit.predict import attack
    from labkit.predict.policy import Foul, Player

    try:
        with Player(_path(policy)) as player, Player(_path(against)) as other:
            found = attack.attack(player, other, figure, times, seed=random_seed, seconds=seconds)
    except Foul as foul:
        raise LabError(
            "a policy cannot play", f"{foul.word}: {foul}", "labctl arena run --public POLICY", code="policy-foul"
        ) from foul
    if json_output:
        document: dict[str, Any] = {"policy": policy, "name": figure, "trace": None}
        if found:
            document["trace"] = [_fields(request) for request in found.trace]
            document |= {"figure": found.figure, "reference": found.reference, "foul": found.foul}
        click.echo(json.dumps(document, indent=1))
        return
    if not found:
        say(
            f"no trace found in {seconds:g} s on which {policy} has more than {times:g} times the {figure} of {against}"
        )
        return
    rows = [[str(value) for value in _fields(request).values()] for request in found.trace]
    click.echo(format_table(rows, list(_fields(found.trace[0])), right=range(5)))
    ground = attack.GROUND
    blocks = f"{ground.blocks} KV blocks of {ground.block_size} tokens"
    where = f"{ground.slots} slots, {blocks}, {ground.step_tokens} a step"
    click.echo(printable(f"\non {where}:"))
    if found.foul:
        click.echo(printable(f"{policy} is disqualified: {found.foul}"))
    else:
        click.echo(f"{figure}: {policy} {found.figure:g}, {against} {found.reference:g}")


def _judged(paths: Sequence[Path], traces: Mapping[str, Sequence[Arrival]]) -> list[Standing]:
    from labkit.predict import referee

    standings = []
    for standing in referee.judge_all(paths, traces):
        standings.append(standing)
        say(f"  ..  {standing.name}: {len(traces)} traces ({len(standings)} of {len(paths)})", err=True)
    return standings


def _run_real(paths: Sequence[Path], traces: Mapping[str, Sequence[Arrival]], json_output: bool) -> None:
    from labctl.labs import arena

    def tell(policy: str, trace: str) -> None:
        say(f"  ..  {policy}: {trace}, in virtual time and on Triton", err=True)

    pairs = arena.play_policies(opt.open_session(), paths, traces, tell)
    if json_output:
        click.echo(json.dumps([arena.policy_result_json(pair) for pair in pairs], indent=1))
        return
    rows = []
    for pair in pairs:
        if not (pair.replay.foul or pair.server.foul):
            rows.append([pair.replay.name, "replay", *_figures(pair.replay)])
            rows.append([pair.server.name, "Triton", *_figures(pair.server)])
    if rows:
        click.echo(format_table(rows, ["policy", "", *HEADER[1:]], right=range(2, len(HEADER) + 1)))
    games = same = 0
    for pair in pairs:
        for trace, parting in pair.partings.items():
            games += 1
            if parting is None:
                same += 1
                continue
            what = "; ".join(f"{key} {here} and {there}" for key, (here, there) in parting.differs.items())
            say(f"\n{pair.replay.name}, {trace}: replay and Triton part at step {parting.step:,}: {printable(what)}")
    say(f"\n{same} of {games} games are the same on both sides, step by step")
    for pair in pairs:
        for name, side in (("replay", pair.replay), ("Triton", pair.server)):
            if side.foul:
                say(f"\ndisqualified ({name}): {side.name} ({side.foul}), trace {side.trace}: {printable(side.why)}")


def _fields(request: Arrival) -> dict[str, str | int | float]:
    return {
        "at ms": round(request.at * 1e3),
        "prompt": request.prompt,
        "limit": request.limit,
        "answer": request.made,
        "priority": request.priority,
        "tenant": request.tenant,
    }


def _figures(standing: Standing) -> list[str]:
    from labkit.predict.referee import COLUMNS

    return [_number(standing.figure(column)) for column in COLUMNS]


def _best_first(standings: Sequence[Standing]) -> list[Standing]:
    """The policies that are not disqualified, the highest goodput first."""
    played = [standing for standing in standings if not standing.foul]
    return sorted(played, key=lambda standing: -standing.figure("goodput_per_s"))


def _show(standings: Sequence[Standing]) -> None:
    if rows := [[standing.name, *_figures(standing)] for standing in _best_first(standings)]:
        click.echo(format_table(rows, HEADER, right=range(1, len(HEADER))))
    for standing in standings:
        if standing.foul:
            say(f"\ndisqualified: {standing.name} ({standing.foul}), trace {standing.trace}: {printable(standing.why)}")


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.1f}"


def _folder() -> Path:
    from labctl.workspace import Workspace

    return Workspace.find().extras / "arena"


def _path(name: str) -> Path:
    """A shipped policy by its name, or a file. Raises LabError where there is neither."""
    shipped = _folder() / f"{name}.py"
    path = shipped if shipped.is_file() else Path(name)
    if not path.is_file():
        raise LabError(
            f"there is no policy {name}", "", "labctl arena list shows those that are shipped", code="policy-unknown"
        )
    return path.resolve()


def _summary(path: Path) -> str:
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return text.partition("\n")[0]
