"""labctl doctor."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from labctl import preflight
from labctl.cli import options as opt
from labctl.errors import LabError
from labctl.guard import envoy
from labctl.orchestrator import ports
from labctl.orchestrator.gpu_checks import gpu_checks
from labctl.orchestrator.plan import Choices, make_plan
from labctl.orchestrator.session import Session
from labctl.preflight import Check
from labctl.runtimes import wheel
from labctl.tables import table


@click.command("doctor")
@click.argument("stack", required=False)
@click.option("--expose", is_flag=True, help="Also check for a stack that listens beyond loopback.")
@opt.choices
@click.option("--workshop", is_flag=True, help="Also check room, memory and speed, the night before.")
@opt.as_json
def doctor_command(stack: str | None, choices: Choices, workshop: bool, expose: bool, json_output: bool) -> None:
    """Say what is missing on this machine (for STACK), and what to do about it. Exit 1 if a lab could not run."""
    session = opt.open_session()
    checks = preflight.machine_checks(session.workspace.cache)
    plan = None
    if stack:
        lab, name = session.catalog.stack(stack)
        plan = make_plan(session.workspace, lab, name, choices, session.runtime("local").server_path)
    runtimes = ("compose",) if plan and plan.release else ("local", "compose")
    servers = [_runtime(session, runtime, choices.profile) for runtime in runtimes]
    if any(check.state == "ok" for check in servers):  # one of them is enough
        servers = [Check(c.name, "ok" if c.state == "ok" else "warn", c.found, c.remedy) for c in servers]
    checks += [*servers, preflight.from_error("ports 8000-8002", lambda: _ports(session), "warn")]
    if expose:
        checks += [*map(_exposed, runtimes), preflight.from_error("Envoy", lambda: str(envoy.binary()), "warn")]
    if choices.profile == "gpu":
        checks += gpu_checks(plan, "compose" if servers[-1].state == "ok" or len(servers) == 1 else "local",
                             session.workspace)  # fmt: skip
    if plan:
        checks += [
            Check(step.title, "ok", "cached")
            if step.ready()
            else Check(step.title, "warn", "to be made", f"labctl up {name}")
            for step in plan.steps
        ]
    if workshop:
        from labctl import workshop as questions  # numpy: only where it is asked for

        checks += questions.checks(session.workspace.root, docker=servers[-1].state == "ok" and len(servers) > 1)
    if json_output:
        click.echo(json.dumps([asdict(check) for check in checks], indent=2))
    else:
        click.echo(_shown(checks))
    if preflight.failed(checks):
        raise LabError("this machine is not ready for the labs", "", "the remedies above")


def _shown(checks: list[Check]) -> str:
    """The checklist, and below it the remedies: a long one must not break the columns of the rest."""
    rows = table([(c.state, c.name, c.found) for c in checks], ("", "check", "found"))
    return "\n".join([rows, *(f"{c.name}: {c.remedy}" for c in checks if c.remedy and c.state != "ok")])


def _exposed(runtime: str) -> Check:
    """What strangers can do to an exposed stack."""
    found = "guarded, but without TLS and accounts"
    return Check(f"--expose on {runtime}", "warn", found, "only on a network that you trust (docs/security.md)")


def _runtime(session: Session, name: str, profile: str) -> Check:
    def ask() -> str:
        session.runtime(name).check(profile)
        return f"Triton {wheel.TRITON_OF_WHEEL.get(wheel.find_wheel().version, '')}" if name == "local" else "answers"

    return preflight.from_error(f"runtime {name}", ask)


def _ports(session: Session) -> str:
    ports.claim("8000,8001,8002", "127.0.0.1", [record for _, record in session.running()])
    return "free"
