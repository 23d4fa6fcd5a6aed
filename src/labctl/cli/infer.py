"""labctl infer."""

from __future__ import annotations

import click

from labctl.cli import options as opt
from labctl.errors import LabError
from labctl.orchestrator import faults, running
from labctl.orchestrator.up import death


@click.command("infer")
@opt.stack_argument
@click.option("-m", "--model", required=True, help="The model to ask.")
@click.option("-p", "--prompt", required=True, help="The text to continue.")
@click.option("-o", "--output-tokens", type=int, default=32, show_default=True, help="Tokens to generate.")
@opt.replica_option
@click.option("-S", "--stream", is_flag=True, help="Print each token as it comes.")
def infer_command(stack: str, model: str, prompt: str, output_tokens: int, replica: int | None, stream: bool) -> None:
    """Get one answer from a model of STACK, which must be up."""
    from labctl.measure.clients import ask

    session = opt.open_session()
    lab, name = session.catalog.stack(stack)
    if dead := death(session, name):
        raise dead
    if lab.stacks[name].bench is None:
        texts = [n for other in session.catalog.labs for n, s in other.stacks.items() if s.bench]
        raise LabError(
            f"{model} is not a text-generation model",
            f"{name} is asked by its lab's own clients: labctl run {lab.short}",
            f"labctl infer {texts[0]} -m MODEL -p PROMPT (or {', '.join(texts[1:])})",
        )
    live = session.find(name)
    if not live:
        raise LabError(f"{name} is not up", "", f"labctl up {name}")
    runtime, record = live[0], live[1].only(replica) if replica else live[1]
    if model not in record.models:
        raise LabError(f"{name} has no model '{model}'", f"it has: {', '.join(record.models)}")
    explain = running.explainer(session, lab, runtime, record)
    pieces = ask.generate(record.endpoints.grpc, model, prompt, output_tokens, stream)
    try:
        with running.watched(session, name, explain):
            for piece in pieces:
                click.echo(piece, nl=False)
    except LabError as error:
        click.echo()
        raise death(session, name) or faults.explained(error, explain) from error
    click.echo()
