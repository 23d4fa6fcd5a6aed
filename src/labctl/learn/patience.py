"""How long a check waits for a learner's model: too long is a fault of the model, and a busy machine is none."""

from __future__ import annotations

from collections.abc import Sequence

from labctl.learn.outcome import Slow, Stuck
from labkit.clients.base import InFlight
from labkit.clients.stream import TextStream
from labkit.contention import Patience
from labkit.errors import LabError
from labkit.records import RequestRecord

SLOWER = 3  # times its patience a check waits while answers still come


def wait_answered(client: InFlight, records: Sequence[RequestRecord], seconds: float) -> None:
    """Return when all records have ended.

    Raises:
        Stuck: no answer within ``seconds``, or none in the last half of them.
        Slow: answers still come after ``SLOWER`` times the seconds.
        LabError: a request failed, or the connection broke.
    """
    whole, half = Patience(SLOWER * seconds), Patience(seconds / 2)
    halves, before = 0, 0
    for record in records:
        while not record.end:
            try:
                client.wait(record, timeout=half.left())
            except LabError as error:
                if record.end or record.error:
                    raise
                client.check()  # a connection that broke is no matter of time
                if half.left():
                    continue
                halves, came = halves + 1, sum(len(one.responses) for one in records)
                if halves > 1 and came == before:
                    raise _stuck(record, seconds, error.why) from error
                if not whole.left():
                    raise Slow(_slow(record.model, came, SLOWER * seconds)) from error
                half, before = Patience(seconds / 2), came  # it still answers: a slow machine is no mistake
    client.wait(*records, timeout=1.0)


def wait_ended(client: InFlight, records: Sequence[RequestRecord], seconds: float) -> None:
    """Return when all records have ended, well or with an error. Raises Stuck, and LabError if the connection broke."""
    patience = Patience(seconds)
    for record in records:
        while not client.ended(record, timeout=patience.left()):
            if not patience.left():
                raise _stuck(record, seconds)
    if any(not record.end for record in records):
        client.check()


def wait_first(stream: TextStream, record: RequestRecord, seconds: float) -> None:
    """Return when the first response has come. Raises as ``wait_answered``."""
    patience = Patience(seconds)
    while True:
        try:
            return stream.wait_first(record, timeout=patience.left())
        except LabError as error:
            if record.end or record.error:
                raise
            stream.check()
            if not patience.left():
                raise _stuck(record, seconds, error.why) from error


def _stuck(record: RequestRecord, seconds: float, why: str = "") -> Stuck:
    return Stuck(f"{record.model} has not answered within {seconds:g} s", why)


def _slow(model: str, came: int, seconds: float) -> str:
    return f"{model} still answers after {seconds:g} s, but slowly ({came} tokens so far): what takes long in a step?"
