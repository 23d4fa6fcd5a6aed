"""labctl infer."""

from __future__ import annotations

import click

from labctl.cli import options as opt
from labctl.stack import faults
from labctl.stack.stack import RunningStack
from labctl.stack.status import death_of_stack
from labkit.errors import LabError
from labsched.printable import printable


@click.command("infer")
@opt.maybe_stack
@opt.endpoint_option("gRPC")
@opt.model_option
@click.option("-p", "--prompt", required=True, metavar="TEXT", help="The text to continue.")
@click.option("-o", "--output-tokens", type=int, default=32, show_default=True, metavar="N", help="Tokens to generate.")
@opt.replica_option
@click.option("-S", "--stream", is_flag=True, help="Print each token as it comes.")
def infer_command(
    stack: str | None,
    endpoint: str | None,
    model: str | None,
    prompt: str,
    output_tokens: int,
    replica: int | None,
    stream: bool,
) -> None:
    """Get one answer from a model of STACK, which must be up, or of any server."""
    from labctl.triton import conversation

    opt.require_named(stack, endpoint)
    if endpoint:
        for piece in conversation.generate(
            endpoint, opt.model_there(stack, model, "infer"), prompt, output_tokens, stream
        ):
            click.echo(printable(piece), nl=False)
        click.echo()
        return
    assert stack  # require_named
    session, lab, name = opt.open_stack(stack)
    if dead := death_of_stack(session, name):
        raise dead
    why = f"{name} is asked by its lab's own clients: labctl run {lab.short}"
    usual = opt.text_model(session, lab, name, "infer {} -m MODEL -p PROMPT", "text-generation model", why)
    model = model or usual
    there = RunningStack.require_up(session, name)
    record = there.record.only(replica) if replica else there.record
    if model not in record.models:
        raise LabError(f"{name} has no model '{model}'", f"it has: {', '.join(record.models)}", code="model-unknown")
    explain = faults.stack_explainer(there)
    if still := faults.standing_still(session, record):
        session.listener.note(still)

    def standing() -> bool:
        return bool(faults.paused_models(session, record))

    pieces = conversation.generate(record.endpoints.grpc, model, prompt, output_tokens, stream, standing)
    try:
        with faults.watch_for_stalls(session, name, explain):
            for piece in pieces:
                click.echo(printable(piece), nl=False)
    except LabError as error:
        click.echo()
        raise death_of_stack(session, name) or faults.explain_error(error, explain) from error
    click.echo()
