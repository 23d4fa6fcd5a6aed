"""How long a check waits for a learner's model: too long is a fault of the model, and a busy machine is none."""

from __future__ import annotations

from labctl.learn.outcome import Slow, Stuck
from labkit.clients.base import InFlight
from labkit.clients.stream import TextStream
from labkit.contention import Patience
from labkit.errors import LabError
from labkit.records import RequestRecord

SLOWER = 3  # times its patience a check waits while answers still come


class Waiting:
    """The ways of a trial to wait."""

    patience: float  # seconds after which a request without an answer counts as stuck

    def wait(self, client: InFlight, *records: RequestRecord) -> None:
        """Until all of them have ended.

        Raises:
            Stuck: no answer within the patience, or none in the last half of it.
            Slow: answers still come after ``SLOWER`` times the patience.
            LabError: a request failed, or the connection broke.
        """
        whole, half = Patience(SLOWER * self.patience), Patience(self.patience / 2)
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
                        raise self._stuck(record, error.why) from error
                    if not whole.left():
                        slow = f"{record.model} still answers after {SLOWER * self.patience:g} s, but slowly"
                        raise Slow(f"{slow} ({came} tokens so far): what takes long in a step?") from error
                    half, before = Patience(self.patience / 2), came  # it still answers: a slow machine is no mistake
        client.wait(*records, timeout=1.0)

    def wait_ended(self, client: InFlight, *records: RequestRecord) -> None:
        """Until all of them have ended, well or with an ``error``. Raises Stuck; LabError if the connection broke."""
        patience = Patience(self.patience)
        for record in records:
            while not client.ended(record, timeout=patience.left()):
                if not patience.left():
                    raise self._stuck(record)
        if any(not record.end for record in records):
            client.check()

    def wait_first(self, stream: TextStream, record: RequestRecord) -> None:
        """Until its first response. Raises as :meth:`wait`."""
        patience = Patience(self.patience)
        while True:
            try:
                return stream.wait_first(record, timeout=patience.left())
            except LabError as error:
                if record.end or record.error:
                    raise
                stream.check()
                if not patience.left():
                    raise self._stuck(record, error.why) from error

    def _stuck(self, record: RequestRecord, why: str = "") -> Stuck:
        return Stuck(f"{record.model} has not answered within {self.patience:g} s", why)
