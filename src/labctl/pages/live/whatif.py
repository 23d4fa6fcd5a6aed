"""Another policy's schedule of the same requests, computed while they are served, and the first step that differs."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Mapping
from pathlib import Path

from labctl.pages.live.events import WhatIfEvent
from labctl.pages.live.lines import Instance, Line
from labctl.pages.live.parting import differing_requests, side_of_parting
from labkit.errors import LabError
from labsched.log.files import open_to_read
from labsched.log.lines import MODEL
from labsched.log.settings import SchedulerSettings
from labsched.log.steplog import REQUEST, SCHEDULER, parse_any_line
from labsched.replay.follow import Follower, StepPair
from labsched.replay.player import change_settings

SHARE = 0.05  # seconds of processor time a second, on average
SPARE_S = 1.0  # the most processor time that an idle page saves up
AT_ONCE_S = 0.02  # the most that is spent before the page is served again
KEPT, RECENT = 64, 3000  # partings and steps that a page gets when it connects
NAMED = 4  # requests that a parting names


class WhatIf:
    """One other policy. Raises LabError: the stack has no scheduler that can be replayed under ``assignments``."""

    def __init__(self, stack: str, run_dir: Path, assignments: Mapping[str, str]) -> None:
        self.policy = " ".join(f"{name}={value}" for name, value in assignments.items())
        self.lane = f"what if {self.policy}"
        self.events: deque[WhatIfEvent] = deque([{"k": "what_if", "words": "no difference yet"}], maxlen=KEPT)
        self.steps: deque[Line] = deque(maxlen=RECENT)
        self._assignments, self._stack = dict(assignments), stack
        self._spare, self._looked = SPARE_S, time.monotonic()
        self._new: list[WhatIfEvent] = []  # of this look
        self._loaded = -1.0  # when the model was loaded, by the SCHEDULER line that is followed
        self._instance, self._seen = Instance(), set[str]()
        self._follower = Follower(self._settings(_head(stack, run_dir)), whole=False)
        self._parted = False

    def feed(self, lines: Iterable[Line]) -> tuple[list[Line], list[WhatIfEvent]]:
        """Take the next lines of every log, and replay as far as processor time allows.

        Returns the steps of the replay, as lines of a log, and where it parts.
        """
        began, now = time.thread_time(), time.monotonic()
        self._spare = min(SPARE_S, self._spare + SHARE * (now - self._looked))
        self._looked = now
        steps: list[Line] = []
        self._new = []
        try:
            for line in lines:
                if line["model"] == MODEL:
                    self._take(line)
            until = began + min(AT_ONCE_S, self._spare)
            for pair in self._follower.pairs():
                if pair.replayed:
                    steps.append({**pair.replayed, "model": self.lane, "instance": "0"})
                if pair.first:
                    self._parted = False
                    self._seen.clear()
                if not self._parted:
                    self._compare(pair)
                if time.thread_time() > until:
                    break
        except LabError as error:
            self._note(f"it ends here: {error.what}: {error.why}")
            self._follower = Follower(self._follower.settings, whole=False)
        self._spare -= time.thread_time() - began
        self.steps.extend(steps)
        return steps, self._new

    def _settings(self, head: Line) -> SchedulerSettings:
        settings = SchedulerSettings.from_json(head)
        if settings.own:
            raise LabError(
                f"{self._stack} cannot be replayed",
                f"{settings.own} is a scheduler of your own",
                "serve the shipped one",
                code="scheduler-not-recorded",
            )
        if settings.vllm:
            from labsched.replay.vllm_scheduler import change_vllm_settings

            return change_vllm_settings(settings, self._assignments)
        return change_settings(settings, self._assignments)

    def _take(self, line: Line) -> None:
        if line.get("kind") == REQUEST:
            self._follower.take(line)
        elif line.get("kind") != SCHEDULER:
            self._follower.take(self._instance.whole(line))
        elif line["t"] != self._loaded:  # the same one begins each file of a log
            self._loaded = line["t"]
            self._instance, self._seen, self._parted = Instance(), set(), False
            self._follower = Follower(self._settings(line), whole=True)

    def _compare(self, pair: StepPair) -> None:
        """Note where server and replay part."""
        lines = [pair.real, pair.replayed]
        here = [name for line in lines if line for name in (*line["ids"], *line["waiting"])]
        same = {name: name for name in here}
        if differ := differing_requests(lines, (same, same)):
            self._parted = True
            real, other = (side_of_parting(line, self._seen, same, differ[:NAMED]) for line in lines)
            why = [[name, real.reasons[name], other.reasons[name]] for name in real.reasons]
            name, really, instead = why[0]
            words = f"first difference at step {other.step or real.step}: {name} {instead} (really: {really})"
            self._note(words, at=[real.step, other.step], why=why)
        self._seen.update(*(line["ids"] for line in lines if line))

    def _note(self, words: str, at: list[int] | None = None, why: list[list[str]] | None = None) -> None:
        self._new.append({"k": "what_if", "words": words, "at": at or [], "why": why or []})
        self.events.append(self._new[-1])


def _head(stack: str, run_dir: Path) -> Line:
    """The newest line SCHEDULER of a stack's logs."""
    logs = [path for path in run_dir.glob(f"steps-{MODEL}-*.jsonl") if not path.stem.rpartition(".")[2].isdigit()]
    if len(logs) > 1:
        raise LabError(
            f"{stack} cannot be replayed",
            f"it has {len(logs)} instances of {MODEL}",
            "serve it with one instance",
            code="what-if-instances",
        )
    for path in logs:
        with open_to_read(path) as stream:
            for text in reversed(stream.read().splitlines()):
                if b'"scheduler"' in text and (line := parse_any_line(text)) and line.get("kind") == SCHEDULER:
                    return line
    raise LabError(
        f"{stack} has no scheduler that can be replayed",
        f"no step log of it names the settings of {MODEL}'s scheduler",
        "labctl up inflight-batching, and watch that",
        code="what-if-unsupported",
    )
