"""The service of JupyterHub's that shows the class view and *Guess* (deploy/hub/jupyterhub_config.py).

JupyterHub starts it, says who may look (everybody in the room), and gives it its address. The teacher sees the class; a
learner sees the question of *Guess*.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from jupyterhub.services.auth import HubOAuthCallbackHandler, HubOAuthenticated
from tornado import web

from labctl.learn.class_page import guess_page, page
from labctl.learn.exercise import find_exercises
from labctl.learn.guess import Guessing, draw_question
from labctl.learn.room import TEACHER, Room
from labctl.learn.standing import standings
from labctl.listener import Silent
from labctl.stack.session import Session

MOST_BYTES = 64 * 1024  # of a form
POLICY = "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; frame-ancestors 'self'"


class _Handler(HubOAuthenticated, web.RequestHandler):  # type: ignore[misc]  # not every machine has these
    """A page of the service, for those whom JupyterHub lets in."""

    def initialize(self, prefix: str, guessing: Guessing, draw: Callable[[str], str]) -> None:
        self.prefix, self.guessing, self.draw = prefix, guessing, draw

    @property
    def name(self) -> str:
        return str(self.current_user["name"])

    @property
    def form_token(self) -> str:
        return str(self.xsrf_form_html())

    def answer(self, text: str) -> None:
        self.set_header("content-security-policy", POLICY)
        self.finish(text)


class _ClassHandler(_Handler):
    """The teacher's view; a learner is sent to the question."""

    @web.authenticated  # type: ignore[untyped-decorator]
    async def get(self) -> None:
        if self.name != TEACHER:
            self.redirect(f"{self.prefix}guess")
            return
        token = self.form_token
        self.answer(await asyncio.to_thread(self.draw, token))


class _GuessHandler(_Handler):
    """The question, and a learner's guess. The teacher sees it without a form."""

    @web.authenticated  # type: ignore[untyped-decorator]
    async def get(self) -> None:
        self.answer(guess_page(self.guessing, "" if self.name == TEACHER else self.name, self.form_token))

    @web.authenticated  # type: ignore[untyped-decorator]
    async def post(self) -> None:
        if self.name != TEACHER:
            self.guessing.take(self.name, self.get_body_arguments("in"))
        self.redirect(f"{self.prefix}guess", status=303)


class _ControlHandler(_Handler):
    """The teacher's buttons: a new question, or the answer."""

    @web.authenticated  # type: ignore[untyped-decorator]
    async def post(self) -> None:
        if self.name != TEACHER:
            raise web.HTTPError(403)
        if self.get_body_argument("do") == "new":
            self.guessing.begin(await asyncio.to_thread(draw_question, random.Random()))
        else:
            self.guessing.shown = True
        self.redirect(self.prefix, status=303)


async def main() -> None:
    """Serve until JupyterHub ends this."""
    session = Session.open(Silent())
    room = Room.of(session.workspace)
    exercises = find_exercises(session.workspace, session.catalog, lambda problem: None)
    guessing = Guessing()

    def draw(token: str) -> str:
        now = time.time()
        return page(list(standings(room, exercises, now)), exercises, now, guessing, token)

    prefix = os.environ["JUPYTERHUB_SERVICE_PREFIX"]
    known: dict[str, Any] = {"prefix": prefix, "guessing": guessing, "draw": draw}
    routes = [
        (prefix, _ClassHandler, known),
        (f"{prefix}guess", _GuessHandler, known),
        (f"{prefix}guess/control", _ControlHandler, known),
        (f"{prefix}oauth_callback", HubOAuthCallbackHandler),
    ]
    where = urlsplit(os.environ["JUPYTERHUB_SERVICE_URL"])
    application = web.Application(routes, cookie_secret=os.urandom(32), xsrf_cookies=True)
    application.listen(where.port or 0, where.hostname or "127.0.0.1", max_body_size=MOST_BYTES)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
