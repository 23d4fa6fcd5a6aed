"""The class view, which shows the teacher where each learner is: a service of JupyterHub's (deploy/hub).

JupyterHub starts it, says who may look (whoever may use the service `class`: its admins), and gives it its address.
"""

from __future__ import annotations

import asyncio
import html
import os
import time
from collections.abc import Callable, Iterable, Sequence
from urllib.parse import urlsplit

from jupyterhub.services.auth import HubOAuthCallbackHandler, HubOAuthenticated
from tornado import web

from labctl.learn.exercise import Exercise, find_all
from labctl.learn.group import SIGN
from labctl.learn.progress import NEW, Entry
from labctl.learn.room import Room
from labctl.learn.standing import Standing, commonest, standings
from labctl.listener import Silent
from labctl.stack.session import Session

AGAIN_S = 10
PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>The class</title>
<meta http-equiv="refresh" content="{again}"><style>
body {{ font: 15px/1.4 system-ui, sans-serif; margin: 2em; color: #1a1a1a; background: #fff }}
table {{ border-collapse: collapse; margin: 0 0 2em }}
caption {{ text-align: left; font-weight: 600; padding: .3em .6em }}
td, th {{ padding: .25em .6em; border-bottom: 1px solid #ddd; text-align: left; font-variant-numeric: tabular-nums }}
</style></head><body><h1>The class</h1>{tables}<p>{legend}</p></body></html>"""


def table(caption: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; every text is escaped."""

    def line(cell: str, texts: Sequence[str]) -> str:
        return "<tr>" + "".join(f"<{cell}>{html.escape(text)}</{cell}>" for text in texts) + "</tr>"

    body = "".join(line("td", row) for row in rows)
    return f"<table><caption>{html.escape(caption)}</caption><thead>{line('th', header)}</thead>{body}</table>"


def page(learners: Sequence[Standing], exercises: Sequence[Exercise], now: float) -> str:
    """The whole page; ``now`` is seconds since the epoch."""
    titles = {each.id: each.manifest.title for each in exercises}
    begun = [id for id in titles if any(id in each.entries for each in learners)]

    def seat(each: Standing) -> list[str]:
        id = each.current
        entry = each.entries.get(id, Entry())
        since = f"{max(0, int(now - entry.started) // 60)} min" if id else ""
        counts = [str(entry.checks), str(entry.hints)] if id else ["", ""]
        signs = [SIGN[each.entries[one].state] if one in each.entries else SIGN[NEW] for one in begun]
        at = f"{id}  {titles[id]}" if id else "nothing yet"
        return [each.name, at, since, *counts, each.mistakes.get(id, ""), *signs, str(each.passed)]

    def exercise(id: str) -> list[str]:
        at = sum(each.current == id for each in learners)
        entries = [each.entries[id] for each in learners if id in each.entries]
        passed = sum(bool(entry.passed) for entry in entries)
        checks = sum(entry.checks for entry in entries)
        common = commonest([each.mistakes[id] for each in learners if id in each.mistakes])
        return [id, titles[id], str(at), f"{passed} of {len(entries)}", str(checks), common]

    columns = ["learner", "is at", "since", "checks", "hints", "last mistake", *begun, "passed"]
    tables = table(f"{len(learners)} learners", columns, [seat(each) for each in learners])
    columns = ["exercise", "", "are at it", "passed", "checks", "commonest mistake at the last check"]
    tables += table("Exercises that were begun", columns, [exercise(id) for id in begun])
    legend = ", ".join(f"{sign} {state}" for state, sign in SIGN.items())
    return PAGE.format(again=AGAIN_S, tables=tables, legend=html.escape(legend))


class ClassHandler(HubOAuthenticated, web.RequestHandler):
    """Shows the page to whom JupyterHub lets in."""

    def initialize(self, draw: Callable[[], str]) -> None:
        self.draw = draw

    @web.authenticated
    async def get(self) -> None:
        self.set_header("content-security-policy", "default-src 'none'; style-src 'unsafe-inline'")
        self.finish(await asyncio.to_thread(self.draw))


async def main() -> None:
    """Serve until JupyterHub ends this."""
    session = Session.open(Silent())
    room = Room.of(session.workspace)
    exercises = find_all(session.workspace, session.catalog, lambda problem: None)

    def draw() -> str:
        return page(list(standings(room, exercises)), exercises, time.time())

    prefix = os.environ["JUPYTERHUB_SERVICE_PREFIX"]
    routes = [(prefix, ClassHandler, {"draw": draw}), (f"{prefix}oauth_callback", HubOAuthCallbackHandler)]
    where = urlsplit(os.environ["JUPYTERHUB_SERVICE_URL"])
    web.Application(routes, cookie_secret=os.urandom(32)).listen(where.port or 0, where.hostname or "127.0.0.1")
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
