"""The hub's pages: a short list of addresses, each for the learner or the instructor whose code opened the browser."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qs

import jinja2
from markdown_it import MarkdownIt
from markupsafe import Markup
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from labctl.hub.codes import INSTRUCTOR, Attempts, Codes, Visits
from labctl.hub.guess import Guess
from labctl.hub.live import Live, call_of
from labctl.hub.room import Room, task_of
from labctl.pages import gate
from labctl.pages.live.page import document
from labctl.pages.live.server import HEADERS
from labkit.errors import LabError

COOKIE = "hub"
MOST_BODY, MOST_FIELDS = 512 * 2**10, 60
ACTS = ("send", "cancel", "clock")
POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src data:; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
FILES = {"hub.css": "text/css", "hub.js": "text/javascript"}
Fields = Mapping[str, list[str]]


class Refused(Exception):
    """An answer that is not the page that was asked for."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status, self.why = status, why


class Hub:
    """The application. ``exposed``: it listens on every address; ``secure``: over TLS."""

    def __init__(self, room: Room, codes: Codes, guess: Guess, exposed: bool = False, secure: bool = False) -> None:
        self.room, self.codes, self.guess, self.exposed, self.secure = room, codes, guess, exposed, secure
        self.forwarded = ""  # another name under which a person has made it known
        self.attempts, self.visits = Attempts(), Visits()
        self.live = {number: Live(seat) for number, seat in room.seats.items()}
        loader = jinja2.PackageLoader("labctl.hub", "templates")
        self.templates = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
        markdown = MarkdownIt("commonmark", {"html": False}).enable("table")
        self.markdown: Callable[[str], Markup] = lambda text: Markup(markdown.render(text))
        get, post = ["GET"], ["POST"]
        routes = [
            ("/", get, self.home),
            ("/enter", post, self.enter),
            ("/leave", post, self.leave),
            ("/state", get, self.state),
            ("/task/{id}", get, self.task),
            ("/task/{id}/{do:str}", post, self.hand_in),
            ("/live/", get, self.live_page),
            ("/live/events", get, self.live_events),
            ("/live/{act}", post, self.live_act),
            ("/guess", get, self.guess_page),
            ("/guess", post, self.vote),
            ("/class/guess/{do}", post, self.turn),
            ("/class/{number:int}/live/", get, self.live_page),
            ("/class/{number:int}/live/events", get, self.live_events),
            *((f"/{name}", get, self.file) for name in FILES),
        ]
        self.app = Starlette(routes=[Route(path, self._guarded(do), methods=how) for path, how, do in routes])

    # -- what every request goes through -----------------------------------------------------------------------------

    def _guarded(self, do: Callable[[Request], Any]) -> Callable[[Request], Any]:
        async def answer(request: Request) -> Response:
            try:
                if why := gate.objection(request.headers, self.exposed, self.forwarded):
                    raise Refused(403, why)
                if request.method == "POST" and "origin" not in request.headers:
                    raise Refused(403, "this page takes no calls from other pages")
                response: Response = await do(request)
            except Refused as refused:
                response = self.page("refused.html", None, status=refused.status, why=refused.why)
            except LabError as error:
                why = ": ".join(part for part in (error.what, error.why) if part)
                response = self.page("refused.html", None, status=409, why=why)
            # With "no-referrer" a browser's forms would say that they come from nowhere.
            own = {"content-security-policy": POLICY, "referrer-policy": "same-origin"}
            for name, value in {**HEADERS, **own}.items():
                response.headers.setdefault(name, value)
            return response

        return answer

    def visitor(self, request: Request) -> int | None:
        """Whose browser it is; None for a stranger's."""
        return self.visits.owner(request.cookies.get(COOKIE, ""))

    def learner(self, request: Request) -> int:
        number = self.visitor(request)
        if number is None:
            raise Refused(401, "enter with your code first")
        if number == INSTRUCTOR:
            raise Refused(403, "this page is a learner's")
        return number

    def instructor(self, request: Request) -> None:
        if self.visitor(request) != INSTRUCTOR:
            raise Refused(403, "this page is the instructor's")

    async def fields(self, request: Request) -> Fields:
        """The fields of a form. Raises Refused: it is none, or too large."""
        if request.headers.get("content-type", "").partition(";")[0] != "application/x-www-form-urlencoded":
            raise Refused(415, "this page takes a form")
        try:
            body = (await gate.read_body(request, MOST_BODY)).decode()
            return parse_qs(body, keep_blank_values=True, max_num_fields=MOST_FIELDS, strict_parsing=bool(body))
        except LabError as error:
            raise Refused(413, error.what) from error
        except ValueError as error:
            raise Refused(400, "this form cannot be read") from error

    def page(self, name: str, visitor: int | None, status: int = 200, **values: Any) -> Response:
        now = "" if visitor is None else self.now(visitor)
        html = self.templates.get_template(name).render(visitor=visitor, status=status, now=now, **values)
        return HTMLResponse(html, status)

    async def file(self, request: Request) -> Response:
        name = request.url.path.removeprefix("/")
        text = (files("labctl.hub") / "templates" / name).read_text(encoding="utf-8")
        return Response(text, media_type=FILES[name])

    # -- entering ----------------------------------------------------------------------------------------------------

    async def home(self, request: Request) -> Response:
        number = self.visitor(request)
        if number is None:
            return self.page("enter.html", None)
        if number != INSTRUCTOR:
            own = self.room.desks[number]
            return self.page("list.html", number, room=self.room, own=own, place=self.room.checks.place(number))
        return self.page("class.html", number, room=self.room, question=self.guess.question)

    async def enter(self, request: Request) -> Response:
        address = request.client.host if request.client else ""
        if not self.attempts.open(address):
            raise Refused(429, "too many wrong codes: wait a minute")
        code = (await self.fields(request)).get("code", [""])[0][:100]
        number = await asyncio.to_thread(self.codes.owner, code)
        if number is None or (number != INSTRUCTOR and number not in self.room.seats):
            self.attempts.failed(address)
            return self.page("enter.html", None, 403, wrong=True)
        response = RedirectResponse("/", 303)
        token = self.visits.begin(number)
        response.set_cookie(COOKIE, token, httponly=True, samesite="strict", secure=self.secure)
        return response

    async def leave(self, request: Request) -> Response:
        self.visits.end(request.cookies.get(COOKIE, ""))
        response = RedirectResponse("/", 303)
        response.delete_cookie(COOKIE, httponly=True, samesite="strict", secure=self.secure)
        return response

    # -- a learner's pages -------------------------------------------------------------------------------------------

    async def state(self, request: Request) -> Response:
        number = self.visitor(request)
        if number is None:
            raise Refused(401, "enter with your code first")
        return JSONResponse({"state": self.now(number)})

    def now(self, number: int) -> str:
        """What a page shows that can change by itself, as one text: the page loads anew when it is another."""
        question = self.guess.question
        asked = question and [question.requests, question.batch, number == INSTRUCTOR and len(question.votes)]
        desks = self.room.desks.values() if number == INSTRUCTOR else [self.room.desks[number]]
        last = max((verdict.at for own in desks for verdict in own.verdicts.values()), default=0)
        places = [self.room.checks.place(one) for one in (self.room.seats if number == INSTRUCTOR else [number])]
        return repr([places, last, asked])

    async def task(self, request: Request) -> Response:
        number, id = self.learner(request), request.path_params["id"]
        texts, exercise = self.room.open(number, id), self.room.exercise(id)
        own = self.room.desks[number]
        hints = exercise.manifest.hints[: own.hints.get(id, 0)]
        values: dict[str, Any] = {"exercise": exercise, "files": texts, "verdict": own.verdicts.get(id), "hints": hints}
        place, task = self.room.checks.place(number), self.markdown(task_of(exercise))
        checked = self.room.checks.exercise(number)
        return self.page("task.html", number, task=task, place=place, checked=checked, **values)

    async def hand_in(self, request: Request) -> Response:
        number, id, do = self.learner(request), request.path_params["id"], request.path_params["do"]
        fields = await self.fields(request)
        if do == "check":
            handed = {name: texts[0].replace("\r\n", "\n") for name, texts in fields.items()}
            self.room.ask(number, id, handed)
        elif do == "hint":
            self.room.hint(number, id)
        elif do == "reset":
            self.room.reset(number, id)
        else:
            raise Refused(404, "this page has no such thing")
        return RedirectResponse(f"/task/{self.room.exercise(id).id}#verdict", 303)

    def _seen(self, request: Request) -> Live:
        """The live page that is asked for: one's own, or any for the instructor."""
        if (number := request.path_params.get("number")) is None:
            return self.live[self.learner(request)]
        self.instructor(request)
        if number not in self.live:
            raise Refused(404, "there is no such learner")
        return self.live[number]

    async def live_page(self, request: Request) -> Response:
        await asyncio.to_thread(self._seen(request).wake)
        return HTMLResponse(document(), headers={"content-security-policy": "frame-ancestors 'none'"})

    async def live_events(self, request: Request) -> Response:
        return StreamingResponse(_suppressed(self._seen(request).events()), media_type="text/event-stream")

    async def live_act(self, request: Request) -> Response:
        live, act = self.live[self.learner(request)], request.path_params["act"]
        if act not in ACTS or request.headers.get("content-type", "").partition(";")[0] != "application/json":
            raise Refused(404, "this page has no such thing")
        try:
            body = await gate.read_body(request, MOST_BODY)
            call_of(body)
            status, answer = await live.act(act, body)
        except (ValueError, RecursionError, OSError, EOFError, TimeoutError, LabError):
            status, answer = 409, {"detail": "the server gave no answer"}
        return JSONResponse(answer, status)

    # -- the room's question -----------------------------------------------------------------------------------------

    async def guess_page(self, request: Request) -> Response:
        number, question = self.learner(request), self.guess.question
        return self.page("guess.html", number, question=question)

    async def vote(self, request: Request) -> Response:
        self.guess.vote(self.learner(request), (await self.fields(request)).get("request", []))
        return RedirectResponse("/guess", 303)

    async def turn(self, request: Request) -> Response:
        self.instructor(request)
        turns = {"begin": self.guess.begin, "reveal": self.guess.reveal, "end": self.guess.end}
        if (turn := turns.get(request.path_params["do"])) is None:
            raise Refused(404, "this page has no such thing")
        await asyncio.to_thread(turn)
        return RedirectResponse("/#guess", 303)

    def close(self) -> None:
        """End the live pages, and everything that runs in the room."""
        for live in self.live.values():
            live.close()
        self.room.close()


async def _suppressed(events: AsyncIterator[str]) -> AsyncIterator[str]:
    """The events until the seat's server is gone; the browser asks again then."""
    with contextlib.suppress(LabError, OSError, ValueError):
        async for event in events:
            yield event
