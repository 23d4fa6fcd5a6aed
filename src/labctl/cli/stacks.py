"""labctl up, status, logs, shell, down."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Iterable, Iterator

import click

from labctl.cli import completion
from labctl.cli import options as opt
from labctl.cli.console import say
from labctl.options import Options
from labctl.runtimes import door
from labctl.runtimes.base import Part, Runtime
from labctl.runtimes.compose_project import BUILDER, REPORT
from labctl.runtimes.processes import as_they_come
from labctl.runtimes.record import Record
from labctl.stack import faults, ports
from labctl.stack.down import down, down_all
from labctl.stack.session import EXERCISE, Session
from labctl.stack.stack import RunningStack
from labctl.stack.status import Status, absent, ready_status, status
from labctl.stack.up import up
from labctl.triton import server_api
from labkit.tables import format_table
from labsched.printable import printable

SPREAD = {
    "l4": "Connections are spread in turn: all requests of one go to one replica.",
    "l7": "Requests are spread in turn, whatever connection they come on.",
    "hash": "Requests of one x-sequence-id go to one replica; those without it all go to one and the same.",
    "client": "Clients spread gRPC requests themselves (gRPC's round_robin); HTTP requests are spread in turn.",
}


@click.command("up")
@opt.stack_argument
@opt.up_options
@click.option(
    "--openai", "with_openai", is_flag=True, help="Also serve the OpenAI API, on port 9000 (docs/guide/openai.md)."
)
@opt.as_json
@opt.verbose
def up_command(stack: str, options: Options, with_openai: bool, json_output: bool, verbose: bool) -> None:
    """Bring STACK up and wait until every model answers."""
    session, lab, name = opt.open_stack(stack, verbose)
    try:
        handle = up(session, lab, name, options)
    except KeyboardInterrupt:
        if session.may_run(name):
            click.echo(f"\n{name} is still starting; take it down with: labctl down {name}", err=True)
        raise
    if handle.already:
        session.listener.note(f"{name} was already up with these settings")
    if with_openai:
        _serve_openai(session, handle.record, options)
    _print(ready_status(handle), json_output)


def _serve_openai(session: Session, record: Record, options: Options) -> None:
    """Start the OpenAI API beside a stack that is up, if it does not run already, and say where it is."""
    if not (address := door.door_url(session.workspace, record)):
        port = ports.free_ports(1)[0] if options.ports == "auto" else door.USUAL_PORT
        again = "free it, then labctl openai STACK (with --port auto on a free port)"
        ports.require_free({"OpenAI": port}, session.running, again)
        address = door.start_door_server(session.workspace, record, port, session.listener)
    session.listener.note(f"OpenAI API: {address}")


@click.command("status")
@click.argument("stack", required=False, shell_complete=completion.stacks)
@opt.as_json
def status_command(stack: str | None, json_output: bool) -> None:
    """Show the state, endpoints and models of STACK, or of every stack that is up.

    The exercise server is the STACK "exercise".
    """
    session = opt.open_session(whatever_is_broken=True)
    if stack:
        named = _stacks_named(session, stack)
        name = named[0] if len(named) == 1 else session.catalog.stack(stack)[1]
        _print(status(session, name), json_output)
        return
    of_labs = {name for lab in session.catalog.labs for name in lab.stacks}
    known, silence = session.look()
    names = sorted((of_labs | known) - {EXERCISE, BUILDER, REPORT})
    if session.may_run(EXERCISE):
        names.append(EXERCISE)
    stacks = [status(session, name) if name in known else absent(session, name) for name in names]
    if json_output:
        click.echo(json.dumps([shown for shown in stacks if shown["state"] != "absent"], indent=2))
        return
    rows = [
        (
            shown["stack"],
            shown["state"],
            shown["runtime"] or "-",
            shown["profile"] or "-",
            shown["endpoints"].get("http", "-"),
        )
        for shown in stacks
    ]
    click.echo(format_table(rows, ("stack", "state", "runtime", "profile", "http")))
    if silence and (shutil.which("docker") or "unknown" in {shown["state"] for shown in stacks}):
        session.listener.note(f"{silence.what} ({silence.why}): stacks in containers are not shown")


@click.command("logs")
@opt.stack_argument
@click.option("-f", "--follow", is_flag=True, help="Keep printing until the server ends.")
@opt.replica_option
def logs_command(stack: str, follow: bool, replica: int | None) -> None:
    """Show the server's log of STACK, or of the exercise server with STACK "exercise".

    What a model prints is in it. Tracebacks name the files that you edit.
    """
    from labctl.learn import server

    session = opt.open_session()
    name = server.resolve_stack(session, stack)
    found = session.state(name)
    runtime, record = (found[0], found[1].record) if found else (session.runtime("local"), None)
    in_own_files: faults.Explain = str
    if record and name == server.STACK:
        in_own_files = server.in_your_files(session, runtime, record)
    elif record:
        in_own_files = faults.stack_files(RunningStack.of(session, None, runtime, record))
    for line in _lines(runtime, name, record, follow, replica):
        click.echo(printable(in_own_files(line)))


def _lines(runtime: Runtime, stack: str, record: Record | None, follow: bool, replica: int | None) -> Iterable[str]:
    """The log; where there are replicas and none is asked for, each line says whose it is."""
    if replica or not record or not record.balance:
        return server_api.readable_log(runtime.logs(stack, follow, replica))

    def labelled(part: Part, name: str) -> Iterator[str]:
        for line in server_api.readable_log(runtime.logs(stack, follow, part)):
            yield f"{name} | {line}"

    streams = [labelled("balancer", "balancer")]
    streams += [labelled(server.number, f"replica {server.number}") for server in record.servers]
    return as_they_come(streams) if follow else itertools.chain.from_iterable(streams)


@click.command("down")
@click.argument("stack", required=False, shell_complete=completion.stacks)
@click.option("--all", "every", is_flag=True, help="Take down every stack of this checkout.")
@opt.verbose
def down_command(stack: str | None, every: bool, verbose: bool) -> None:
    """Take STACK down, and check that nothing of it is left."""
    if every == bool(stack):
        raise click.UsageError("name a stack, or say --all")
    session = opt.open_session(verbose, whatever_is_broken=True)
    if every:
        names = down_all(session)
        click.echo(f"down: {', '.join(names)}" if names else "nothing was up")
        return
    for name in _stacks_named(session, stack or ""):
        done = down(session, name)
        click.echo(f"{name} is down" if done else f"{name} was not up")


def _stacks_named(session: Session, word: str) -> list[str]:
    """The stacks of a lab, or one by its name, as :meth:`Session.stacks_named`; also the exercises' own."""
    return [EXERCISE] if word == EXERCISE else session.stacks_named(word)


def _edits(shown: Status) -> list[str]:
    """The edited files: those that the server has, and those that it does not have yet."""
    titles = {
        True: "edited (git restore FILE puts the shipped one back):",
        False: f"edited, but not loaded (labctl reload {shown['stack']}):",
    }
    parts = []
    for loaded, title in titles.items():
        if files := [f"  {edit['file']}" for edit in shown["edited"] if edit["loaded"] == loaded]:
            parts.append("\n".join([title, *files]))
    return parts


def _replicas(shown: Status, balance: str) -> str:
    """The servers as a table, and how requests are spread over them."""
    rows = [
        (
            str(replica["number"]),
            replica["state"],
            *(replica["endpoints"][name] for name in ("http", "grpc", "metrics")),
            str(replica.get("in_flight", "-")),
            str(replica.get("requests", "-")),
            replica["ended"] or "",
        )
        for replica in shown["replicas"]
    ]
    header = ("replica", "state", "http", "grpc", "metrics", "in flight", "requests", "")
    return f"{format_table(rows, header)}\n\n{SPREAD[balance]}"


def _print(shown: Status, json_output: bool) -> None:
    if json_output:
        click.echo(json.dumps(shown, indent=2))
    else:
        say(printable(_describe(shown)))


def _describe(shown: Status) -> str:
    """The status object as a person reads it."""
    head = f"{shown['stack']} is {shown['state']}"
    if shown["runtime"]:
        triton = f", Triton {shown['triton']}" if shown["triton"] else ""
        head += f" ({shown['runtime']} runtime, profile {shown['profile']}{triton})"
    parts = [head]
    if shown["endpoints"]:
        parts.append("\n".join(f"  {name:<8} {where}" for name, where in shown["endpoints"].items()))
    if env_file := shown.get("env_file"):
        parts.append(f"By hand: docker compose --env-file {env_file} ps")
    if address := shown.get("openai"):
        parts.append(f"OpenAI API: {address}")
    if balance := shown["balance"]:
        parts.append(_replicas(shown, balance))
    if shown["models"]:
        rows = [(m["name"], m["version"], m["state"], " ".join(m["reason"].split())) for m in shown["models"]]
        parts.append(format_table(rows, ("model", "version", "state", "reason")))
    effective = {key: item for key, item in shown["effective"].items() if isinstance(item, dict)}
    differing = {key: item for key, item in effective.items() if item.get("asked") != item.get("effective")}
    if as_asked := [f"{key}={item['effective']}" for key, item in effective.items() if key not in differing]:
        parts.append(f"  in force: {', '.join(as_asked)}")
    for key, item in differing.items():
        asked = f", not {item['asked']}" if item.get("asked") else ""
        parts.append(f"  {key}: {item.get('effective')} is in force{asked}: {item.get('reason')}")
    if shown["state"] == "paused":
        parts.append(
            f"Its clock stands still, and no scheduler begins a step: labctl clock {shown['stack']} step, or run"
        )
    parts += [f"{sentence}\nAfter the edit: labctl restart {shown['stack']}" for sentence in shown["stuck"]]
    if shown["state"] == "stalled" and not shown["stuck"]:
        parts.append(
            "Requests wait but nothing is executed. If clients went away in the middle of an answer, their sequences "
            "still hold Triton's slots; they are freed after max_sequence_idle_microseconds. An execution that does "
            "not come back is named here after 20 s."
        )
    parts += _edits(shown)
    if shown["state"] == "degraded":
        what = "The other replicas serve on" if shown["balance"] else "Not every model answers"
        if shown["ended"]:
            what = f"Nothing reaches the servers ({shown['ended']})"
        then = f"labctl restart {shown['stack']}" if shown["balance"] else "labctl down, labctl up"
        parts.append(f"{what}. The log: labctl logs {shown['stack']}; then: {then}")
    if shown["state"] == "unknown":
        ended = shown["ended"] or "nobody knows why"
        parts.append(ended[:1].upper() + ended[1:])
    if shown["state"] == "removed":
        gone = "Its containers were removed, and not by labctl; what they had logged went with them"
        parts.append(f"{gone}. Then: labctl down {shown['stack']}")
    if shown["state"] == "failed":
        how = f": {shown['ended']}" if shown["ended"] else ""
        parts.append(f"The server died{how}. Its log: labctl logs {shown['stack']}; then: labctl down {shown['stack']}")
    return "\n\n".join(parts)


@click.command("shell")
@opt.stack_argument
@opt.verbose
def shell_command(stack: str, verbose: bool) -> int:
    """Open a shell beside STACK, which must be up: in a container of its network, or here.

    It has labctl, Python, curl and an editor, and the addresses as TRITON_HTTP, TRITON_GRPC and TRITON_METRICS. In a
    container it may write into results/ alone. Its exit status is the shell's.
    """
    session, _, name = opt.open_stack(stack, verbose)
    there = RunningStack.require_up(session, name)
    return there.runtime.client(session.listener, None, there.record)
