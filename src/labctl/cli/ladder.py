"""labctl learn ladder: the exam of a learner's own scheduler."""

from __future__ import annotations

from pathlib import Path
from statistics import mean

import click

from labctl.cli.console import say
from labctl.contention import Patience
from labctl.learn import growing, ladder, sandbox
from labctl.workspace import Workspace
from labkit.errors import LabError
from labkit.tables import format_table

WORD = "ladder"
LIMIT_S = 60.0  # of processor time, for the four loads
YOURS = "yours"
LOADS = """
stories       short prompts, long answers that outgrow the memory
articles      long prompts with short answers, among short ones
flood         one tenant sends half of all requests at once, another one by one
conversation  the beginning of a public trace of a chat service (Mooncake)
"""


def climb(workspace: Workspace) -> None:
    """Print the goodput of ``my/scheduler.py`` on each load, beside its rivals' goodput.

    Raises LabError: the file cannot be used.
    """
    folder = workspace.root / growing.FOLDER
    rows = dict(ladder.rivals(workspace.root))
    if (workspace.root / growing.OWN).is_file():
        player = Path(ladder.__file__)
        found = sandbox.call_in_sandbox(
            player, ladder.goodputs.__name__, [str(workspace.root), str(folder)], Patience(LIMIT_S)
        )
        if "error" in found:
            raise LabError(f"{growing.OWN} cannot be replayed", found["error"], code="scheduler-file-invalid")
        rows[YOURS] = found
    columns = ("scheduler", *ladder.LOADS, "mean")
    cells = []
    for name, goodputs in sorted(rows.items(), key=lambda row: mean(row[1].values())):
        numbers = [goodputs[load] for load in ladder.LOADS]
        cells.append((name, *(f"{number:.2f}" for number in (*numbers, mean(numbers)))))
    click.echo(f"Goodput by the replay: requests per second within {ladder.SLO}\n")
    click.echo(format_table(cells, columns, right=range(1, len(columns))))
    click.echo(LOADS)
    if YOURS not in rows:
        say(f"There is no {growing.OWN} yet. It begins with: labctl exercise start 05a")
