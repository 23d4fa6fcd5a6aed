"""The class view: where each learner is, and what most stumble over. JupyterHub shows it (class_service.py)."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from labctl.learn.exercise import Exercise
from labctl.learn.progress import NEW, PASSED, STARTED, Entry
from labctl.learn.standing import ClassStanding, commonest

SIGN = {NEW: ".", STARTED: "o", PASSED: "x"}
AGAIN_S = 10
PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>The class</title>
<meta http-equiv="refresh" content="{again}"><style>
body {{ font: 15px/1.4 system-ui, sans-serif; margin: 2em; color: #1a1a1a; background: #fff }}
table {{ border-collapse: collapse; margin: 0 0 2em }}
caption {{ text-align: left; font-weight: 600; padding: .3em .6em }}
td, th {{ padding: .25em .6em; border-bottom: 1px solid #ddd; text-align: left; font-variant-numeric: tabular-nums }}
</style></head><body><h1>The class</h1>{body}</body></html>"""


def _table(caption: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; every text is escaped."""

    def line(cell: str, texts: Sequence[str]) -> str:
        return "<tr>" + "".join(f"<{cell}>{html.escape(text)}</{cell}>" for text in texts) + "</tr>"

    body = "".join(line("td", row) for row in rows)
    return f"<table><caption>{html.escape(caption)}</caption><thead>{line('th', header)}</thead>{body}</table>"


def page(learners: Sequence[ClassStanding], exercises: Sequence[Exercise], now: float) -> str:
    """The whole page, which a browser loads again every 10 s; ``now`` is seconds since the epoch."""
    titles = {exercise.id: exercise.title for exercise in exercises}
    begun = [id for id in titles if any(id in learner.entries for learner in learners)]

    def learner_row(learner: ClassStanding) -> list[str]:
        current = learner.current
        entry = learner.entries[current] if current else Entry()
        at = f"{current}  {titles[current]}" if current else "nothing yet"
        since = f"{int(now - entry.started) // 60} min" if entry.started else ""
        counts = [str(entry.checks), str(entry.hints)] if current else ["", ""]
        signs = [SIGN[learner.entries[id].state] if id in learner.entries else SIGN[NEW] for id in begun]
        return [learner.name, at, since, *counts, learner.mistakes.get(current or "", ""), *signs, learner.passed]

    def exercise_row(id: str) -> list[str]:
        at = sum(learner.current == id and learner.entries[id].state != PASSED for learner in learners)
        entries = [learner.entries[id] for learner in learners if id in learner.entries]
        passed = sum(entry.state == PASSED for entry in entries)
        checks = sum(entry.checks for entry in entries)
        common = commonest([learner.mistakes[id] for learner in learners if id in learner.mistakes])
        return [id, titles[id], str(at), f"{passed} of {len(entries)}", str(checks), common]

    columns = ["learner", "is at", "since", "checks", "hints", "last mistake", *begun, "passed"]
    tables = _table(f"{len(learners)} learners", columns, map(learner_row, learners))
    columns = ["exercise", "", "are at it", "passed", "checks", "commonest mistake at the last check"]
    tables += _table("Exercises that were begun", columns, map(exercise_row, begun))
    legend = ", ".join(f"{sign} {state}" for state, sign in SIGN.items())
    return PAGE.format(again=AGAIN_S, body=f"{tables}<p>{html.escape(legend)}</p>")
