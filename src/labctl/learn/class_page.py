"""The class view: where each learner is, and what most stumble over. JupyterHub shows it (class_service.py)."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from labctl.learn.exercise import Exercise
from labctl.learn.group import SIGN
from labctl.learn.progress import NEW, PASSED, Entry
from labctl.learn.standing import ClassStanding, commonest

AGAIN_S = 10
PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>The class</title>
<meta http-equiv="refresh" content="{again}"><style>
body {{ font: 15px/1.4 system-ui, sans-serif; margin: 2em; color: #1a1a1a; background: #fff }}
table {{ border-collapse: collapse; margin: 0 0 2em }}
caption {{ text-align: left; font-weight: 600; padding: .3em .6em }}
td, th {{ padding: .25em .6em; border-bottom: 1px solid #ddd; text-align: left; font-variant-numeric: tabular-nums }}
</style></head><body><h1>The class</h1>{tables}<p>{legend}</p></body></html>"""


def _table(caption: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; every text is escaped."""

    def line(cell: str, texts: Sequence[str]) -> str:
        return "<tr>" + "".join(f"<{cell}>{html.escape(text)}</{cell}>" for text in texts) + "</tr>"

    body = "".join(line("td", row) for row in rows)
    return f"<table><caption>{html.escape(caption)}</caption><thead>{line('th', header)}</thead>{body}</table>"


def page(learners: Sequence[ClassStanding], exercises: Sequence[Exercise], now: float) -> str:
    """The whole page; ``now`` is seconds since the epoch."""
    titles = {each.id: each.manifest.title for each in exercises}
    begun = [id for id in titles if any(id in each.entries for each in learners)]

    def seat(each: ClassStanding) -> list[str]:
        id = each.current
        entry = each.entries.get(id, Entry())
        since = f"{int(now - entry.started) // 60} min" if entry.started else ""
        counts = [str(entry.checks), str(entry.hints)] if id else ["", ""]
        signs = [SIGN[each.entries[one].state] if one in each.entries else SIGN[NEW] for one in begun]
        at = f"{id}  {titles[id]}" if id else "nothing yet"
        return [each.name, at, since, *counts, each.mistakes.get(id, ""), *signs, str(each.passed)]

    def exercise(id: str) -> list[str]:
        at = sum(each.current == id for each in learners)
        entries = [each.entries[id] for each in learners if id in each.entries]
        passed = sum(entry.state == PASSED for entry in entries)
        checks = sum(entry.checks for entry in entries)
        common = commonest([each.mistakes[id] for each in learners if id in each.mistakes])
        return [id, titles[id], str(at), f"{passed} of {len(entries)}", str(checks), common]

    columns = ["learner", "is at", "since", "checks", "hints", "last mistake", *begun, "passed"]
    tables = _table(f"{len(learners)} learners", columns, [seat(each) for each in learners])
    columns = ["exercise", "", "are at it", "passed", "checks", "commonest mistake at the last check"]
    tables += _table("Exercises that were begun", columns, [exercise(id) for id in begun])
    legend = ", ".join(f"{sign} {state}" for state, sign in SIGN.items())
    return PAGE.format(again=AGAIN_S, tables=tables, legend=html.escape(legend))
