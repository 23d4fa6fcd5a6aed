"""labctl reproduce."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from typing import TYPE_CHECKING

import click

from labctl.cli import options as opt
from labctl.cli.console import say
from labkit.errors import LabError

if TYPE_CHECKING:
    from labctl.museum.exhibit import Exhibit
    from labctl.museum.visit import Visit


@click.command("reproduce")
@click.argument("what", metavar="list|NUMBER|all")
@click.option("--workaround", is_flag=True, help="Run with the exhibit's work-around: then it must pass.")
@click.option("--kills", is_flag=True, help="Also run the wing of exhibits that end their server.")
@click.option(
    "--image",
    default="",
    envvar="LABS_MUSEUM_IMAGE",
    metavar="IMAGE",
    help="Run against the tritonserver of this Docker image, which must be on this machine.",
)
@opt.number_option("--at-once", 2, "Servers that `all` runs at the same time.", click.IntRange(1, 8))
@opt.as_json
@click.pass_context
def reproduce_command(
    ctx: click.Context, what: str, workaround: bool, kills: bool, image: str, at_once: int, json_output: bool
) -> None:
    """List the museum of upstream issues, or make one happen.

    NUMBER is an exhibit's (`server#8870`, or only `8870`). Each runs on a Triton of its own, on loopback, which is
    killed afterwards. The verdict is `reproduces`, `mended` or `cannot tell here`. Each exhibit's page is
    labs/extras/museum/NAME/README.md.
    """
    from labctl.museum import exhibit as exhibits
    from labctl.museum import visit
    from labctl.workspace import Workspace

    workspace = Workspace.find()
    found = exhibits.find_exhibits(workspace)
    if what == "list":
        _list(found, json_output)
        return
    if what == "all":
        chosen = [exhibit for exhibit in found if kills or not exhibit.deadly]
        visits = []
        for ended in visit.run_all(workspace, chosen, workaround, image, at_once):
            visits.append(ended)
            if not json_output:
                say(f"{ended.verdict:<16}  {ended.number:<20}  {ended.measured}", hanging=" " * 40)
        if not json_output:
            _count(visits, len(found) - len(chosen))
    else:
        exhibit = exhibits.find_exhibit(found, what)
        if exhibit.deadly and not kills:
            raise LabError(
                f"{exhibit.number} ends its server",
                "that server is its own; nothing else is harmed",
                f"labctl reproduce {what} --kills",
                code="exhibit-kills",
            )
        visits = [visit.reproduce_exhibit(workspace, exhibit, workaround, image)]
        if not json_output:
            _show(exhibit, visits[0])
    if json_output:
        click.echo(visit.visits_json(visits))
    if any(each.verdict in (visit.FAILS, visit.CANNOT_TELL) for each in visits):
        ctx.exit(1)


def _list(found: list[Exhibit], json_output: bool) -> None:
    from labctl.museum.exhibit import DEADLY

    if json_output:
        rows = [{"number": e.number, "name": e.name, **e.manifest.model_dump()} for e in found]
        click.echo(json.dumps(rows, indent=2))
        return
    for wing, group in itertools.groupby(found, key=lambda exhibit: exhibit.manifest.wing):
        click.echo(f"{wing}{': needs --kills' if wing == DEADLY else ''}")
        for exhibit in group:
            click.echo(f"  {exhibit.number:<20}  {exhibit.manifest.title}")
    click.echo("\nlabctl reproduce NUMBER makes it happen.\nlabs/extras/museum/NAME/README.md has its cause.")


def _show(exhibit: Exhibit, visit: Visit) -> None:
    upstream, manifest = exhibit.manifest.upstream, exhibit.manifest
    say(f"{visit.number}  {visit.title}")
    if upstream:
        say(f"  upstream  {upstream.kind}, {upstream.state}: {upstream.title}", hanging=" " * 10)
    say(f"  expected  {visit.expected}", hanging=" " * 10)
    say(f"  measured  {visit.measured}", hanging=" " * 10)
    say(f"  verdict   {visit.verdict}  (Triton {visit.triton or 'unknown'}, {visit.seconds:.1f} s)")
    if visit.workaround:
        say(f"  with      {manifest.workaround.text}", hanging=" " * 10)
    say(f"Read {exhibit.folder.parent.name}/{exhibit.name}/README.md for the cause.")


def _count(visits: list[Visit], left_out: int) -> None:
    counts = Counter(visit.verdict for visit in visits)
    verdicts = ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items()))
    more = f"; {left_out} that end the server need --kills" if left_out else ""
    say(f"\n{len(visits)} exhibits: {verdicts}{more}")
