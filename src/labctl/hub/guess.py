"""Guess, for the whole room: the clock of an instructor's stack stops, and all say who is in the next batch."""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from labctl.clock.clock import Clock
from labctl.pages.live.lines import CHANGE, HELD, Instance, clock_of, held_steps
from labctl.pages.live.tail import Tail
from labctl.runtimes.record import Record
from labctl.workspace import Workspace
from labkit.errors import LabError
from labkit.waiting import attempts

MOST_REQUESTS, LOOK_S, LOG_S = 40, 0.05, 5.0


@dataclass
class Question:
    """One question: the ``requests`` to choose from, in the order running, waiting; ``votes``: by learner."""

    stack: str
    model: str
    running: Sequence[str]
    waiting: Sequence[str]
    votes: dict[int, frozenset[str]] = field(default_factory=dict)
    batch: Sequence[str] | None = None  # the answer, once the step was made

    @property
    def requests(self) -> Sequence[str]:
        return [*self.running, *self.waiting]

    def tally(self) -> list[tuple[str, int, bool]]:
        """Each request, how many think that it is in the batch, and whether it is (False before the step)."""
        counted = collections.Counter(name for vote in self.votes.values() for name in vote)
        names = [*self.requests, *(name for name in self.batch or () if name not in self.requests)]
        return [(name, counted[name], name in (self.batch or ())) for name in names]

    @property
    def right(self) -> int:
        """How many learners named exactly the batch."""
        return sum(vote == frozenset(self.batch or ()) for vote in self.votes.values()) if self.batch else 0


class Guess:
    """At most one question at a time. ``running``: the instructor's stacks that are up."""

    def __init__(self, workspace: Workspace, running: Callable[[], Sequence[Record]]) -> None:
        self._workspace, self._running, self._lock = workspace, running, threading.Lock()
        self.question: Question | None = None
        self._stopped: tuple[Clock, Tail, str] | None = None

    def begin(self) -> None:
        """Stop the clock of the stack whose model has most requests, and ask. Raises LabError: there is none."""
        with self._lock:
            best: tuple[int, Question, Clock, Tail, str] | None = None
            for record in self._running():
                if len(record.servers) > 1:
                    continue
                clock = clock_of(self._workspace, record)
                clock.pause()
                tail, found = Tail(clock.run_dir), dict[str, tuple[list[str], list[str]]]()
                instances: dict[tuple[str, str], Instance] = collections.defaultdict(Instance)
                lines = [*tail.read(), *({"ids": [], "dur": 0.0, **line, "kind": HELD} for line in held_steps(clock))]
                for line in (line for line in lines if "ids" in line):
                    whole = instances[line["model"], line["instance"]].whole(line)
                    own = [name for name in whole["seats"] if name]
                    coming = [*whole["waiting"], *(sorted(line["ids"]) if line.get("kind") == HELD else ())]
                    found[line["model"]] = own, [name for name in dict.fromkeys(coming) if name not in own]
                for model, (own, waiting) in found.items():
                    count = len(own) + len(waiting)
                    if count and (best is None or count > best[0]):
                        question = Question(record.stack, model, own[:MOST_REQUESTS], waiting[:MOST_REQUESTS])
                        best = count, question, clock, tail, record.endpoints.metrics
                if best is None or best[2] is not clock:
                    clock.run()
            if best is None:
                why = "bring one up here (labctl up iterative), and send it requests on its live page"
                raise LabError("no stack of yours has a request", why)
            self.question, self._stopped = best[1], (best[2], best[3], best[4])

    def vote(self, learner: int, names: Collection[str]) -> None:
        """Raises LabError: nothing is asked, or it is not one of the requests."""
        with self._lock:
            question = self.question
            if question is None or question.batch is not None:
                raise LabError("no question is open")
            if not set(names) <= set(question.requests):
                raise LabError("that is none of the requests")
            question.votes[learner] = frozenset(names)

    def reveal(self) -> None:
        """Make the next step. Raises LabError: no step came."""
        with self._lock:
            question = self.question
            if question is None or self._stopped is None or question.batch is not None:
                raise LabError("no question is open")
            clock, tail, metrics = self._stopped
            tail.read()
            clock.act("step", 1, question.model, metrics)
            for _ in attempts(LOG_S, LOOK_S):
                lines = [line for line in tail.read() if line.get("model") == question.model and "ids" in line]
                if steps := [line for line in lines if line.get("kind") != CHANGE]:
                    question.batch = [str(name) for name in steps[0]["ids"]]
                    return
            raise LabError("no step came", "no request needed one")

    def end(self) -> None:
        """Let the clock run, and forget the question."""
        with self._lock:
            if self._stopped:
                self._stopped[0].run()
            self.question = self._stopped = None
