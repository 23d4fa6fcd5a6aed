"""The records that a replay of the scheduler needs (`labctl predict`): its settings, and a line for each request."""

import base64
import secrets
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from labsched.lines import REQUIRED_WORDS
from labsched.recording import HASH_BYTES, SchedulerSettings
from labsched.request import Request
from labsched.steplog import REQUEST, SCHEDULER, StepLog

WORDS = (
    "engine",
    *REQUIRED_WORDS,
    "pace",
    "pace_shape",
    "pace_table",
    "pace_slower",
    "async_scheduling",
    "gather_microseconds",
)


class RequestLog:
    """Writes two kinds of lines into the step log, `scheduler` and `request` (docs/develop/step-log.md).

    `steps` counts the steps as the clock does: a step in which requests only wait counts too.
    """

    def __init__(self, log: StepLog, settings: SchedulerSettings) -> None:
        self.steps = 0
        self._log = log
        self._key = secrets.randbits(60)  # so that a text cannot be looked up by the hashes of its tokens
        self._arrivals: dict[int, dict[str, Any]] = {}  # how it came, by the number of a live request
        log.note(
            SCHEDULER,
            first=True,
            words=dict(settings.words),
            context=settings.context,
            vocabulary=settings.vocabulary,
            blocks=settings.blocks,
            block_size=settings.block_size,
            step_tokens=settings.step_tokens,
            own=settings.own,
        )

    def arrived(self, request: Request, put: float) -> None:
        """Note when it came, and that Triton had handed it over at `put` (monotonic seconds)."""
        now = time.monotonic()
        came = {"arrived": round(now, 6), "waited": round(now - put, 6), "after": self.steps}
        self._arrivals[request.number] = came

    def ended(self, request: Request) -> Callable[[], None]:
        """A function that writes an ended request's record. It may run later, because hashing all tokens takes time."""
        arrived = self._arrivals.pop(request.number, None)
        if arrived is None or not self._log.open:
            return lambda: None
        return partial(self._write, request, arrived, self.steps, time.monotonic())

    def _write(self, request: Request, arrived: dict[str, Any], left: int, now: float) -> None:
        self._log.note(
            REQUEST,
            t=round(now, 6),
            name=request.name,
            came=request.came,
            **arrived,
            prompt=len(request.prompt),
            limit=request.limit,
            made=len(request.output),
            why=request.why,
            left=left,
            word=request.ends_with_stop_word,
            tenant=request.tenant,
            priority=request.priority,
            resumable=request.resumable,
            prefixes=self._prefixes(request.prompt + request.output),
        )

    def _prefixes(self, ids: Sequence[int]) -> str:
        """A keyed hash of the sequence up to each of its tokens, `HASH_BYTES` each, in base64."""
        key = self._key
        hashes = bytearray()
        for token in ids:
            key = hash((key, token))
            hashes += (key & 0xFFFFFF).to_bytes(HASH_BYTES, "little")
        return base64.b64encode(hashes).decode()
