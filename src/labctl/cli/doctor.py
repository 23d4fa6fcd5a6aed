"""labctl doctor."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from labctl.cli import completion
from labctl.cli import options as opt
from labctl.cli.console import say
from labctl.doctor.checklist import checklist
from labctl.options import Options
from labctl.plan import make_plan
from labctl.stack.ports import claim_endpoints
from labkit.errors import LabError
from labkit.tables import format_table


@click.command("doctor")
@click.argument("stack", required=False, shell_complete=completion.stacks)
@opt.plan_options
@click.option("--workshop", is_flag=True, help="Also check room, memory and speed, the night before.")
@opt.as_json
def doctor_command(stack: str | None, options: Options, workshop: bool, json_output: bool) -> None:
    """Say what is missing on this machine (for STACK), and what to do about it. Exit 1 if a lab could not run."""
    session = opt.open_session()
    plan = None
    if stack:
        lab, name = session.catalog.stack(stack)
        plan = make_plan(session.workspace, lab, name, options)
    checks = checklist(
        session.workspace,
        session.runtime,
        lambda: claim_endpoints(options.ports, session.running),
        plan,
        options.profile,
        workshop=workshop,
    )
    if json_output:
        click.echo(json.dumps([asdict(check) for check in checks], indent=2))
    else:
        say(format_table([(c.state, c.name, c.found) for c in checks], ("", "check", "found")))
        for check in checks:  # below the rows: a long remedy must not break their columns
            if check.remedy and check.state != "ok":
                say(f"{check.name}: {check.remedy}")
    if any(check.state == "fail" for check in checks):
        raise LabError("this machine is not ready for the labs", "", "the remedies above", code="machine-not-ready")
