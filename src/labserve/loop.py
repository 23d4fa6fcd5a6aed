"""A model with a loop of its own: `execute` only hands requests over, and a thread computes their steps."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer

from labserve.guard import Guard
from labserve.observe.gauges import Value
from labserve.observe.steps import Steps
from labserve.observe.texts import GrownText
from labserve.triton import respond

END_S = 10.0  # an unloaded model waits so long for its last step


@dataclass(eq=False)
class Job:
    """A request in the model. Its client is sent `limit` pieces of text, one a step."""

    request: Any
    prompt: Sequence[str]
    limit: int
    name: str = ""  # in the step log
    made: int = 0
    why: str = ""  # it has ended, in the step log's word; "" while it runs

    @property
    def todo(self) -> int:
        """Tokens that its next step computes."""
        return 1 if self.made else len(self.prompt)

    def grown(self, made: int) -> GrownText:
        """The step log's text entry for a step that made `made` pieces."""
        return GrownText(self.name, (), 0, made)


class Loop:
    """The requests of a model instance, and the thread that computes their steps.

    Triton's thread appends to `waiting`; all else belongs to the thread of the steps. Who changes or counts `waiting`
    and `running` holds the lock. The requests of one execution arrive together.

    Args:
        args: those of Triton's `initialize`.
        slots: how many requests may run at a time.
        job_of: what a request asks for. Raises Refusal.
        step: called again and again while there are requests. If it raises, all of them end with an error.
        tokenizer, gauges: as of Steps.
    """

    def __init__(
        self,
        args: dict[str, str],
        slots: int,
        job_of: Callable[[Any], Job],
        step: Callable[[], None],
        tokenizer: Callable[[], "Tokenizer | None"] = lambda: None,
        **gauges: Value,
    ) -> None:
        self.guard = Guard(args)
        self.steps = Steps(args, slots, tokenizer, waiting=0, **gauges)
        self.more: dict[str, Any] = {}  # further fields of this step's line
        self.waiting: deque[Job] = deque()
        self.running: list[Job] = []
        self._job_of, self._step = job_of, step
        self._changed, self._stopped = threading.Condition(), False
        self._broken: Exception | None = None  # why the thread has ended; nothing can be served any more
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def receive(self, requests: Sequence[Any]) -> None:
        """Queue the requests; a request that cannot be served is answered with its error."""
        jobs = []
        for request in requests:
            try:
                self.guard.check(request)
                job = self._job_of(request)
                job.name = self.steps.arrive(request)
                jobs.append(job)
            except Exception as error:
                self.guard.refuse(request, error)
        with self._changed:
            if not self._broken:
                self.waiting.extend(jobs)
                self._show()
                self._changed.notify()
                return
        for job in jobs:
            self.steps.forget(job.name)
            self.guard.refuse(job.request, self._broken)

    @property
    def free_slots(self) -> int:
        """How many more requests may run."""
        return len(self.steps.slots.names) - self.steps.slots.used

    def admit(self) -> Job | None:
        """Give the request that has waited longest a slot. Returns None if its client has gone."""
        job = self.waiting[0]  # it leaves the queue last: if this fails, `_fail` answers what is in the queue
        ended = self._has_ended(job)
        with self._changed:
            if ended:
                self.steps.end(job.name, job.why)
            else:
                self.steps.join(job.name)
                self.running.append(job)
            self.waiting.popleft()
        return None if ended else job

    def drop_cancelled(self) -> None:
        """Free the slots of requests whose clients have gone."""
        for job in [job for job in self.running if self._has_ended(job)]:
            with self._changed:
                self.running.remove(job)
                self.release(job)
                self.steps.end(job.name, job.why)

    def release(self, job: Job) -> None:
        """A running request has ended: free what else it holds."""

    @contextmanager
    def step(self) -> Iterator[list[Job]]:
        """Surround a step of the running requests, which it yields; each is to be sent its next piece."""
        batch = list(self.running)
        phase = "".join("d" if job.made else "p" for job in batch)
        tokens = [job.todo for job in batch]
        waiting = [job.name for job in self.waiting]
        with self.steps.step([job.name for job in batch], phase, tokens, waiting) as observed:
            before = [job.made for job in batch]
            observed.more = self.more
            yield batch
            self.more = {}
            observed.grown = [job.grown(job.made - made) for job, made in zip(batch, before, strict=True)]
            self.drop_cancelled()

    def send(self, job: Job, piece: str) -> None:
        """Its next piece of text. Where it cannot be sent (shared memory is full), this request ends, and no other."""
        job.made += 1
        try:
            respond(job.request, piece, last=job.made == job.limit)
            job.why = "length" if job.made == job.limit else ""
        except Exception as error:
            job.why = "failed"
            self.guard.refuse(job.request, error)

    def _has_ended(self, job: Job) -> bool:
        """Whether a request has its last piece or its error, or its client has gone: then it is ended here."""
        if not job.why and job.request.is_cancelled():
            job.why = "cancelled"
            with suppress(Exception):
                respond(job.request, "", last=True)
        return bool(job.why)

    # -- the thread ---------------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        self.steps.log.watch(self._step)
        try:
            while self._has_work():
                try:
                    self._step()
                except Exception as error:
                    self._fail(error)
        except Exception as error:  # outside a step
            with self._changed:
                self._broken = error
            self._fail(error)

    def _has_work(self) -> bool:
        """Wait for requests; False when the model is unloaded."""
        with self._changed:
            self._show()
            if not self.waiting and not self.running:
                self.steps.clock.idle()
                if self.steps.ended:  # without a step
                    self.steps.write(time.monotonic(), kind="change")
            self._changed.wait_for(lambda: self._stopped or self.waiting or self.running)
            return not self._stopped

    def _fail(self, error: Exception) -> None:
        """A step failed: every present request ends with the error, and the loop goes on with later requests."""
        with self._changed:
            lost = [*self.running, *self.waiting]
            for job in self.running:
                self.release(job)
            self.running.clear()
            self.waiting.clear()
        for job in lost:
            self.steps.forget(job.name)
            if not job.why:
                self.guard.refuse(job.request, error)
        self.steps.clock.done()

    def _show(self) -> None:
        self.steps.gauges.update(running=len(self.running), waiting=len(self.waiting))

    def close(self) -> None:
        """End the thread; the model is being unloaded."""
        with self._changed:
            self._stopped = True
            self._changed.notify()
        self._thread.join(END_S)
        self.steps.close()
