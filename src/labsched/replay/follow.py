"""The requests of a server under other settings, while it works: a replay that follows its step log.

A request is replayed when its line REQUEST is there, which is when it has ended: only then is the length of its answer
known. So a replay is as far behind as the oldest request that has not ended. Requests arrive at the steps at which they
arrived (no step is timed). While the server is idle, the replay ends the requests that it has left; then both begin
together again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from labsched.log.settings import SchedulerSettings
from labsched.log.steplog import REQUEST
from labsched.replay.player import Replay, scheduler_of
from labsched.replay.recording import CANCELLED, Arrival
from labsched.step import Step

Line = Mapping[str, Any]
STEP_S = 0.001  # between two steps of the replay at whose place the server has none


@dataclass(frozen=True)
class StepPair:
    """The same step of server and replay, counted from the last time that both were idle; None: it has no more.

    ``replayed`` is a step as the step log has it, with the times of the server's step.
    """

    first: bool
    real: Line | None
    replayed: Line | None


@dataclass
class _Period:
    """The server's steps from its first request until it is idle, as far as they are not replayed yet."""

    real: deque[Line] = field(default_factory=deque)
    end: float | None = None  # when it was idle; None: it is not


class Follower:
    """Follows one instance. ``settings``: of the replay (:func:`labsched.replay.player.change_settings`).

    ``whole``: the lines begin where the model was loaded, else the replay begins when the server is idle.
    """

    def __init__(self, settings: SchedulerSettings, whole: bool) -> None:
        self.settings = settings
        self._number = 0  # of the last step that was given out,
        self._t = 0.0  # and its time
        self._begin(whole)

    def _begin(self, known: bool) -> None:
        """Begin again at the next line; ``known``: the replay has seen every request that the server has."""
        self._known = known
        self._next = 1  # the place, in the order of arrival, of the next request to replay
        self._line = 0  # the number of the last line
        self._records: dict[int, Line] = {}  # requests that are not replayed yet, by their place in the order
        self._live: set[str] = set()  # requests that have not ended on the server
        self._fresh()

    def _fresh(self) -> None:
        """Replace the replay by one that has computed nothing."""
        self._arrivals: list[Arrival] = []
        self._replay = Replay(scheduler_of(self.settings), self._arrivals, seen=self._take_step)
        self._periods = deque([_Period()])
        self._steps: list[Step] = []
        self._shown: set[str] = set()  # requests in the replay's last step that went on
        self._empty = True  # no request of this period has arrived yet
        self._first = True  # the next step is the first of its period
        self._later = 0  # by how many steps the replay's count is ahead of the server's
        self._bound = 0  # steps up to which every arrival is known

    def take(self, line: Line) -> None:
        """The next line of the log, of kind ``step``, ``change`` (both whole) or REQUEST."""
        if line["kind"] == REQUEST:
            self._records[int(line["came"])] = line
            return
        if line["n"] != self._line + 1 and (self._line or self._known):  # lines are lost: a log was rotated
            self._begin(known=False)
        self._line = line["n"]
        self._live = (self._live | {*line["ids"], *line["waiting"]}) - {*line.get("ended", ())}
        if self._known and line["kind"] != "change":
            self._periods[-1].real.append(line)
        if self._live or line["queue"] > len(line["waiting"]):
            return
        if self._known and self._periods[-1].real:
            self._periods[-1].end = line["t"]
            self._periods.append(_Period())
        elif not self._known and self._records:
            self._known, self._next = True, max(self._records) + 1
            self._records.clear()
            self._fresh()

    def pairs(self) -> Iterator[StepPair]:
        """Replay as far as the requests are known. It may be left at any pair, and called again.

        Raises LabError: a request would be refused under these settings.
        """
        while self._known:
            period = self._periods[0]
            record = self._records.get(self._next)
            if record and (period.end is None or record["arrived"] <= period.end):
                del self._records[self._next]
                self._next += 1
                self._arrive(record)
            elif period.end is not None and self._replay.over:
                if period.real:
                    yield StepPair(self._first, period.real[0], None)
                self._periods.popleft()
                self._empty = self._first = True
            elif period.end is None and (self._replay.steps_over >= self._bound or not period.real):
                return
            else:
                self._replay.advance()
                while self._steps:
                    real = period.real.popleft() if period.real else None
                    first = self._first
                    self._first = False
                    yield StepPair(first, real, self._replayed(self._steps.pop(), real, first))

    def _arrive(self, record: Line) -> None:
        if record["why"] in CANCELLED and record["left"] == record["after"]:
            return  # no step has seen it
        if self._empty:
            self._empty = False
            self._later = max(0, self._replay.steps_over - record["after"])
        name = str(record["name"])
        unique = f"{name}@{record['came']}" if name in self._replay.live else name
        arrival = Arrival.from_json(record, unique, base=-self._later)
        self._arrivals.append(arrival)
        self._bound = arrival.after

    def _take_step(self, step: Step) -> None:
        self._steps.append(step)

    def _replayed(self, step: Step, real: Line | None, first: bool) -> Line:
        self._number = max(self._number + 1, real["n"] if real and first else 0)
        self._t = max(self._t + STEP_S, real["t"] if real else 0.0)
        ended = {name: "cancelled" for name in self._shown if name not in self._replay.live}
        step.ended = {**ended, **step.ended}
        self._shown = (self._shown | {*step.ids}) - {*step.ended}
        scheduler = self._replay.scheduler
        return {
            "kind": "step",
            "waiting": [],
            "why": "",
            "because": {},
            **step.to_json(),
            "n": self._number,
            "t": self._t,
            "dur": real["dur"] if real else 0.0,
            "slots": scheduler.max_running,
            "seats": list(scheduler.slots.names),
            "kv_blocks": scheduler.kv.blocks,
        }
