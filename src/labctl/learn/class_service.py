"""The service of JupyterHub's that shows the class view (deploy/hub/jupyterhub_config.py).

JupyterHub starts it, gives it its address, and lets in only the teacher.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from urllib.parse import urlsplit

from jupyterhub.services.auth import HubOAuthCallbackHandler, HubOAuthenticated
from tornado.web import Application, RequestHandler, authenticated

from labctl.learn.class_page import page
from labctl.learn.exercise import find_exercises
from labctl.learn.room import Room
from labctl.learn.standing import standings
from labctl.listener import Silent
from labctl.stack.session import Session

POLICY = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'self'"


class _ClassHandler(HubOAuthenticated, RequestHandler):  # type: ignore[misc]  # not every machine has these
    """The class view."""

    def initialize(self, draw: Callable[[], str]) -> None:
        self.draw = draw

    @authenticated  # type: ignore[untyped-decorator]
    async def get(self) -> None:
        self.set_header("content-security-policy", POLICY)
        self.finish(await asyncio.to_thread(self.draw))


async def main() -> None:
    """Serve until JupyterHub ends this."""
    session = Session.open(Silent())
    room = Room.of(session.workspace)
    exercises = find_exercises(session.workspace, session.catalog, lambda problem: None)

    def draw() -> str:
        now = time.time()
        return page(list(standings(room, exercises, now)), exercises, now)

    prefix = os.environ["JUPYTERHUB_SERVICE_PREFIX"]
    routes = [(prefix, _ClassHandler, {"draw": draw}), (f"{prefix}oauth_callback", HubOAuthCallbackHandler)]
    where = urlsplit(os.environ["JUPYTERHUB_SERVICE_URL"])
    application = Application(routes, cookie_secret=os.urandom(32))
    application.listen(where.port or 0, where.hostname or "127.0.0.1")
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
