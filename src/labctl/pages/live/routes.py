"""A router's decisions, each beside what the chosen server found: from the step logs of all servers (lab 09).

A router sends its reasons with a request (the input ``route``), and the server writes them into the line of the step in
which the request joins. So one line has what was expected and what was found, on every runtime.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypedDict

from labctl.pages.live.tail import StepLogTail
from labkit.evidence.names import LetterNames
from labkit.evidence.steplog import REPLICA, run_folders
from labsched.log.steplog import parse_step_line

KEPT = 200  # decisions that a page gets when it connects
LITTLE = 0.5  # of the expected tokens: if a server finds fewer, its router is wrong about it


class _RouteCandidate(TypedDict):
    """A candidate: its score as text, and what the router knew of it, in tokens (``requests``: in requests)."""

    name: str
    score: str
    cached: int
    requests: int
    tokens: int  # prompt tokens that are left to compute there


class RouteEvent(TypedDict):
    """One decision; ``words`` say it in a sentence, ``sum`` says what all decisions of its policy came to so far."""

    k: Literal["route"]
    t: float  # seconds of the log's clock
    request: str  # its id in the step log
    called: str  # its name for people
    chosen: str
    prompt: int  # tokens
    found: int  # tokens of the prompt that the server had cached
    servers: list[_RouteCandidate]
    words: str
    sum: str


@dataclass
class _Sums:
    """Sums over the decisions of one policy: prompt tokens that were expected and found in a cache."""

    policy: str = ""
    requests: int = 0
    prompt: int = 0
    expected: int = 0
    found: int = 0
    passed: int = 0  # requests whose prompt another server had more of

    def words(self) -> str:
        """The expected and the found tokens; if few were found, the reason by the decisions."""
        of = max(1, self.prompt)
        name = self.policy or "a policy without a name"
        sentences = [
            f"{name}, {_count(self.requests, 'request')}: of {self.prompt:,} prompt "
            f"tokens the router expected {self.expected:,} cached ({self.expected / of:.0%}), and the servers found "
            f"{self.found:,} ({self.found / of:.0%})."
        ]
        if self.expected and self.found < LITTLE * self.expected:
            sentences.append("The servers do not have what the router remembers: they keep less, or were restarted.")
        if self.passed:
            sentences.append(f"{_count(self.passed, 'request')} went past a server that had more of the prompt.")
        elif self.requests > 1 and not self.expected:
            sentences.append("As far as the router knows, no server had the beginning of any prompt.")
        return " ".join(sentences)


class Routes:
    """Turns lines of step logs, in order of time, into decisions; the sums begin again where the policy changes."""

    def __init__(self, names: LetterNames | None = None) -> None:
        self.names = LetterNames() if names is None else names
        self._sums = _Sums()

    def events(self, lines: Iterable[Mapping[str, Any]]) -> list[RouteEvent]:
        """The decisions in these lines. What has another form is left out, because any client may send anything."""
        events: list[RouteEvent] = []
        for line in lines:
            routes = line.get("routes")
            if not isinstance(routes, dict):
                continue
            for name in (name for name in line["ids"] if name in routes):
                with contextlib.suppress(TypeError, ValueError, LookupError, AttributeError, ArithmeticError):
                    events.append(self._event(line, name, routes[name]))
        return events

    def _event(self, line: Mapping[str, Any], name: str, route: Mapping[str, Any]) -> RouteEvent:
        found = int(line["cached"][line["ids"].index(name)])
        scores = {server: float(score) for server, score in route["scores"].items()}
        servers = [_server(server, scores[server], known) for server, known in route["candidates"].items()]
        chosen = {server["name"]: server for server in servers}[route["replica"]]
        prompt = int(route["candidates"][chosen["name"]]["prompt"])
        most = max(servers, key=lambda server: server["cached"])
        passed = most["cached"] > chosen["cached"]
        words = f"{_sent(self.names[name], route, scores, chosen)}; {chosen['cached']} of its {prompt} tokens were "
        words += f"expected to be cached there, and the server found {found}"
        if passed:
            words += f"; server {most['name']} had {most['cached']}, with score {most['score']}"
        policy = str(route.get("policy", ""))
        if policy != self._sums.policy:
            self._sums = _Sums(policy)
        sums = self._sums
        sums.requests += 1
        sums.prompt += prompt
        sums.passed += passed
        sums.expected += chosen["cached"]
        sums.found += found
        return {
            "k": "route",
            "t": line["t"],
            "request": name,
            "called": self.names[name],
            "chosen": chosen["name"],
            "prompt": prompt,
            "found": found,
            "servers": servers,
            "words": words,
            "sum": sums.words(),
        }


def describe_routes(lines: Iterable[Mapping[str, Any]], request: str, names: LetterNames | None = None) -> list[str]:
    """The decisions about one request, by its id."""
    events = Routes(names).events(line for line in lines if "routes" in line)
    return [event["words"] for event in events if event["request"] == request]


class RouteTail:
    """The decisions in the step logs of all servers of a stack, as they come. ``run_dir`` is that of any of them."""

    def __init__(self, run_dir: Path, names: LetterNames | None = None) -> None:
        self.recent: deque[RouteEvent] = deque(maxlen=KEPT)
        self._run_dir = run_dir.parent if run_dir.name.startswith(REPLICA) else run_dir
        self._routes = Routes(names)
        self._tails: dict[Path, StepLogTail] = {}

    def read(self) -> list[RouteEvent]:
        """The decisions since the last call; at first the recent ones."""
        lines = [
            line
            for folder in run_folders(self._run_dir)
            for line in self._tails.setdefault(folder, StepLogTail(folder, _with_routes)).read()
        ]
        events = self._routes.events(sorted(lines, key=lambda line: line["t"]))
        self.recent.extend(events)
        return events


def _with_routes(line: bytes) -> dict[str, Any] | None:
    return parse_step_line(line) if b'"routes":' in line else None


def _server(name: str, score: float, known: Mapping[str, Any]) -> _RouteCandidate:
    cached, requests, tokens = (int(known[key]) for key in ("cached", "requests", "tokens"))
    return {"name": name, "score": f"{score:,.6g}", "cached": cached, "requests": requests, "tokens": tokens}


def _sent(name: str, route: Mapping[str, Any], scores: Mapping[str, float], chosen: _RouteCandidate) -> str:
    """Which request went where, and how its score stands among the others."""
    best = [server for server, score in scores.items() if score == max(scores.values())]
    others = [server for server in best if server != chosen["name"]]
    if chosen["name"] not in best:
        rank = f"not the highest, which server {best[0]} had"
    else:
        rank = f"the highest of {len(scores)}" + (f", with server {' and '.join(others)}" if others else "")
    session = f" ({route['session']})" if route.get("session") else ""
    return f"request {name}{session} went to server {chosen['name']}: score {chosen['score']}, {rank}"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
