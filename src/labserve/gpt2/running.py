"""GPT-2 for a model whose lesson is the scheduling: sequences begin, get a token a step, and leave when finished.

`Running` computes the batches that it is given. `IterativeRunning` is for a model that Triton schedules again for every
token (`iterative_sequence: true`): it keeps the sequences between two executions, and knows which has a slot, which
waits, and whose client has gone.

Triton executes a sequence again and again, and says nothing when it stops. Its client may have gone, which Triton 2.51
notices at different moments: of a gRPC stream at once, of an HTTP connection only when a response cannot be written. So
`IterativeRunning` asks for each sequence that does not come back. An id is in one of these states:

=========  ====================  =======================================================================================
state      where it is kept      how it goes on
=========  ====================  =======================================================================================
unknown    nowhere               waiting, with a request that has the flag START; any other request is refused
waiting    `live`                running, when a step has a slot for it (`_admit`)
running    `live`; it is         resting with its last token or an error; waiting, if it was silent and another
           `running`             sequence needed its slot; running otherwise
silent     as before             none of its requests came for `PATIENCE_S`, and the model was idle for `FREE_S` of
                                 that. As before when one comes; unknown when its client has gone (`_sweep`), when it
                                 begins again, or when Triton has given it up as idle
resting    `_resting`            every request is refused; unknown when none has come for as long as a silent one
=========  ====================  =======================================================================================
"""

import json
import threading
import time
from collections.abc import Iterator
from collections.abc import Sequence as Batch
from contextlib import contextmanager
from typing import Any, NamedTuple

import triton_python_backend_utils as pb_utils

from labserve.driver import Driver, PieceAnswers
from labserve.gpt2.kvcache import KVCache
from labserve.gpt2.loading import count_slots, load_with_tokenizer
from labserve.gpt2.sequences import Sequence
from labserve.guard import Guard
from labserve.observe.gauges import Value
from labserve.observe.periodic import PeriodicCall
from labserve.observe.recorder import Recorder
from labserve.params import BadInput
from labserve.slot_scheduler import SlotScheduler
from labserve.triton import parameter, text_of

START = pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START
END = pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END
PATIENCE_S = 1.0  # of silence; then a sequence is given up, and its id is free again
FREE_S = 0.1  # of this time the model must have been idle: a sequence is not silent because a step takes long
ASK_S = 0.01  # between two questions about a sequence whose slot another one needs
LOOK_S = 0.25  # between two looks at all silent sequences
LEAST_S = 0.001  # a shorter wait would gather nothing: to be given back takes as long
MOST_ASKED = 64  # in one look; a question is a message to the server and back


class Running:
    """The sequences of a model instance. A driver (labserve/driver.py) computes, answers, ends and records them.

    As many sequences may run at a time as the model has `slots`: a parameter, else its `max_batch_size`.

    Args:
        args: those of Triton's `initialize`.
        queues: whether sequences can wait for a slot. Else steps ask whether their clients are still there.
        gauges: further metrics of the model (labserve.observe.recorder).
    """

    def __init__(self, args: dict[str, str], queues: bool = False, **gauges: Value) -> None:
        self.slots = count_slots(args)
        self._new, self.decoder, tokenizer = load_with_tokenizer(args)
        self.guard = Guard(args)
        self.scheduler = SlotScheduler(self.decoder, self.slots, queues, asks=not queues)
        self.recorder = Recorder(args, self.scheduler, lambda: tokenizer, gauges)
        self.driver = Driver(self.guard, self.scheduler, PieceAnswers(), self.recorder)
        self._rescheduled = "sequence_batching" in json.loads(args["model_config"])
        self.live: dict[int, Sequence] = {}  # those of an iterative model between two steps, by correlation id

    @property
    def cache(self) -> KVCache | None:
        """The keys and values of the sequences, if they are kept; an exercise's observer reads it."""
        return getattr(self.decoder, "cache", None)

    def sequences_of(self, requests: Batch[Any]) -> list[Sequence]:
        """The sequence of each request, in their order: a new one, or the one that runs if Triton schedules it again.

        A request that cannot be served is answered with its error, and has none.
        """
        sequences = []
        for request in requests:
            try:
                sequences.append(self._sequence_of(request))
            except Exception as error:
                self._refuse(request, error)
        return sequences

    def _refuse(self, request: Any, error: Exception) -> None:
        self.guard.refuse(request, error)

    def _sequence_of(self, request: Any) -> Sequence:
        id = self._id_of(request)
        if id and not request.flags() & START:
            sequence = self.live[id]
            sequence.request = request
            return sequence
        sequence = self._begin(request)
        self.scheduler.join(sequence)
        if id:
            self.live[id] = sequence
        return sequence

    def _id_of(self, request: Any) -> Any:
        """By what Triton schedules it again. Without a sequence batcher it does not, and clients may share an id."""
        return request.correlation_id() if self._rescheduled else 0  # a text, if the client wrote one

    def _begin(self, request: Any) -> Sequence:
        """A new sequence for the request. Raises Refusal, which says what is wrong with it."""
        self.guard.check(request)
        sequence = self._new(text_of(request, "text_input"), request.parameters())
        sequence.request, sequence.correlation = request, self._id_of(request)
        sequence.id = str(sequence.correlation or request.request_id())
        self.driver.submit(sequence)
        return sequence

    def step(self, batch: Batch[Sequence], waiting: Batch[Sequence] = ()) -> None:
        """One more token for each sequence of the batch, sent to its client; `waiting` have no slot meanwhile.

        A sequence with its last token, or one that fails, is `finished`; an error of one does not affect the others.
        """
        if batch:
            self.driver.run(self.scheduler.plan_of([*batch], waiting))
        for sequence in batch:
            if sequence.finished:
                self._ended(sequence)

    def _ended(self, sequence: Sequence) -> None:
        """A sequence is finished, and has its answer."""
        self.live.pop(sequence.correlation, None)

    def close(self) -> None:
        """The model is being unloaded."""
        self.driver.close()


class Stamp(NamedTuple):
    """A moment: seconds of the model's clock, and how many of them no execution was in progress."""

    now: float
    free: float


class IterativeRunning(Running):
    """Keeps sequences between two executions. Triton may hand over any number of them, in any order.

    `lock` is held for a whole execution and for a whole look, and the thread that holds it (Triton's, or the looking
    thread between two executions) owns everything here. Another thread may read `live`: a sequence leaves it after its
    slot is free and its end is noted.
    """

    def __init__(self, args: dict[str, str]) -> None:
        super().__init__(args, queues=True, waiting=0)
        batching = json.loads(args["model_config"])["sequence_batching"]
        self.lock = threading.Lock()
        # `live` is in the order in which the sequences were last executed.
        self._idle_s = int(batching["max_sequence_idle_microseconds"]) / 1e6  # then Triton itself forgets a sequence
        self._gather_s = int(parameter(args, "gather_microseconds", "0")) / 1e6
        self._here: list[Sequence] = []  # in this execution
        self._resting: dict[int, Stamp] = {}  # ids whose sequence ended or was refused, and when
        self._unfinished: set[Sequence] = set()  # had a token in the last step and need another
        self._gave_back = self._gathered = False
        self._busy = 0.0  # seconds of executions
        self._round = 0  # executions
        self._asked = self._looked = 0.0
        self._stamp = Stamp(self.recorder.clock.now(), self.recorder.clock.now())
        self.looking = PeriodicCall(LOOK_S, self._look)

    # -- an execution -----------------------------------------------------------------------------------------------

    @contextmanager
    def execution(self, requests: Batch[Any]) -> Iterator[list[Sequence]]:
        """Surround an execution. Yields the sequences of its requests, as :meth:`sequences_of`."""
        with self.lock:
            self._begin_round()
            try:
                self._sweep()
                self._here = self.sequences_of(requests)
                yield self._here
            except Exception:  # Triton answers all of them with the error, and is not to be asked after them again
                for request in requests:
                    self._rest(request.correlation_id())
                raise
            finally:
                for sequence in self._here:
                    sequence.request = None  # it is Triton's again
                self._here = []
                self._busy += self.recorder.clock.now() - self._stamp.now  # which does not count as silence

    def sequences_of(self, requests: Batch[Any]) -> list[Sequence]:
        """The sequence of each request that is not refused. Two requests with the same id are both refused."""
        sequences = super().sequences_of(requests)
        for sequence in list(sequences):
            if self.live.get(sequence.correlation) is not sequence:  # its id was used again in this batch
                sequences.remove(sequence)
                self._refuse(sequence.request, used_twice(sequence.correlation))
        return sequences

    def _sequence_of(self, request: Any) -> Sequence:
        """The sequence that a request goes on with or begins. Raises BadInput if it can do neither."""
        id, flags = request.correlation_id(), request.flags()
        kept, starts = self.live.get(id), bool(flags & START)
        if id in self._resting:
            raise BadInput("sequence_id", f"{id} was in use just now; it can be used again in {PATIENCE_S:g} s")
        if kept and (kept.round == self._round or (starts and not self._silent(kept))):
            # Triton keeps one entry for an id and drops it when either of the two ends: neither could go on alone.
            raise used_twice(id)
        if not kept and not starts:
            raise BadInput("sequence_id", f"{id} is not known: used twice, or idle for too long")
        if kept and starts:  # what a client left that has gone
            self._forget(kept, "cancelled")
            kept = None
        if flags & END:  # Triton has forgotten the id by now, and cannot schedule it again
            raise BadInput("sequence_end", "a sequence ends here with its last token; leave this flag out")
        sequence = kept or self._begin(request)
        sequence.request, sequence.sender = request, request.get_response_sender()
        sequence.round = self._round
        self._executed(sequence)
        return sequence

    def _refuse(self, request: Any, error: Exception) -> None:
        super()._refuse(request, error)
        self._rest(request.correlation_id())

    def free_slots(self, sequences: Batch[Sequence]) -> int:
        """How many of these may get a slot now: the free ones, and those of silent sequences.

        If they are too few, it asks whether the clients of the sequences outside the execution have gone.
        """
        running, here = self.scheduler.running, set(sequences)
        missing = sorted((other for other in running if other not in here), key=lambda other: other.seen)
        newcomers = sum(not sequence.running for sequence in here)
        if newcomers > self.slots - len(running):
            self._ask(missing)
        silent = sum(1 for other in missing if other.running and self._silent(other))
        return self.slots - len(running) + silent

    def awaits_others(self, batch: Batch[Sequence]) -> bool:
        """Whether to give this batch back once, since others are on their way that could share its step."""
        return not batch or self._out_of_step(batch) or self._too_early(batch)

    def _out_of_step(self, batch: Batch[Sequence]) -> bool:
        """Whether to wait for sequences that had a token in the last step and are on their way back.

        Triton forms the next batch while a step is computed, without the sequences of that step. They and a newcomer
        could take turns, each in a batch of their own. If the newcomer is given back once, it meets them in the queue.
        It is given back only once in a row: a sequence whose client has gone does not come back.
        """
        self._gave_back = not self._gave_back and not self._unfinished.issubset(batch)
        return self._gave_back

    def _too_early(self, batch: Batch[Sequence]) -> bool:
        """Whether newcomers of an idle model are given back once, after a moment in which others may have come.

        Otherwise, of several requests that come together, the first would get a step of its own while the others wait.
        """
        at_once = self._gathered or self._unfinished or len(batch) == self.slots or self._gather_s < LEAST_S
        self._gathered = not at_once
        if self._gathered:
            time.sleep(self._gather_s)
        return self._gathered

    def step(self, batch: Batch[Sequence], waiting: Batch[Sequence] = ()) -> None:
        """One more token for each sequence of the batch; see :meth:`Running.step`. Those without a slot get one."""
        self._admit(batch)
        chosen = set(batch)
        super().step(batch, [sequence for sequence in self._here if sequence not in chosen])
        now = self.recorder.clock.now()
        self._stamp = Stamp(now, self._stamp.free)
        self._busy = now - self._stamp.free
        self._unfinished = {sequence for sequence in batch if sequence.running}
        for sequence in self._unfinished:  # they come back as soon as Triton queues them
            self._executed(sequence)

    def _admit(self, batch: Batch[Sequence]) -> None:
        """Give each of these a slot: a free one, or that of a sequence that fell silent.

        If the silent sequence comes back, it waits for a slot, and its keys and values are computed again.
        """
        for sequence in batch:
            if sequence.running:
                continue
            if len(self.scheduler.running) == self.slots:
                self.scheduler.evict(min(self.scheduler.running, key=lambda other: other.seen))
            self.scheduler.join(sequence)

    def _begin_round(self) -> None:
        """An execution begins, or the silent sequences are looked at between two executions."""
        self._round += 1
        now = self.recorder.clock.now()
        self._stamp = Stamp(now, now - self._busy)

    def _executed(self, sequence: Sequence) -> None:
        sequence.seen, sequence.free = self._stamp
        self.live.pop(sequence.correlation, None)
        self.live[sequence.correlation] = sequence  # at the end: they stay in the order of silence

    # -- the ends of sequences --------------------------------------------------------------------------------------

    def _look(self) -> None:
        """While nothing is executed: free the slots of sequences whose clients have gone."""
        if self.live and self.lock.acquire(blocking=False):
            try:
                self._begin_round()
                self._sweep()
                if self.recorder.pending:
                    self.recorder.change()
            finally:
                self.lock.release()

    def _sweep(self) -> None:
        """Forget sequences whose clients have gone, and sequences that Triton itself has given up by now."""
        now = self._stamp.now
        while self.live:  # the one that was silent for longest is the first
            sequence = next(iter(self.live.values()))
            if now - sequence.seen < self._idle_s:
                break
            self._forget(sequence, "idle")
        while self._resting and self._quiet(next(iter(self._resting.values()))):
            self._resting.pop(next(iter(self._resting)))
        if now - self._looked < LOOK_S:
            return
        self._looked = now
        silent = [one for one in self.live.values() if self._silent(one) and now - one.asked >= PATIENCE_S]
        for sequence in silent[:MOST_ASKED]:
            self._drop_cancelled(sequence)

    def _ended(self, sequence: Sequence) -> None:
        self._rest(sequence.correlation, sequence.why or "failed")

    def _rest(self, id: int, why: str = "failed") -> None:
        """A sequence has ended, with which Triton drops what it has of that id.

        Of other requests with the id that are in its queue by now none could be rescheduled, and their clients would
        hear nothing. So all that come are turned away, until the id was quiet for a while.
        """
        self._resting.pop(id, None)
        self._resting[id] = self._stamp  # at the end: they are in the order in which they end
        if id in self.live:
            self._forget(self.live[id], why)

    def _forget(self, sequence: Sequence, why: str) -> None:
        """The only way out for a sequence: its slot is free again, its end is noted, and last it leaves `live`."""
        self._unfinished.discard(sequence)
        if not sequence.finished:
            sequence.finish(why)
        self.scheduler.leave(sequence)
        self.driver.end(sequence, answer=False)  # nobody waits for its answer any more
        del self.live[sequence.correlation]

    # -- silence ----------------------------------------------------------------------------------------------------

    def _quiet(self, since: Stamp) -> bool:
        return self._stamp.now - since.now >= PATIENCE_S and self._stamp.free - since.free >= FREE_S

    def _silent(self, sequence: Sequence) -> bool:
        return self._quiet(Stamp(sequence.seen, sequence.free))

    def _ask(self, sequences: Batch[Sequence]) -> None:
        """Others want the slots of these: free them up to the first one whose client is still there."""
        if self._stamp.now - self._asked < ASK_S:
            return
        if not all(map(self._drop_cancelled, sequences)):
            self._asked = self._stamp.now

    def _drop_cancelled(self, sequence: Sequence) -> bool:
        sequence.asked = self._stamp.now
        if sequence.sender is None or not sequence.sender.is_cancelled():
            return False
        self._forget(sequence, "cancelled")
        return True

    def close(self) -> None:
        """The model is being unloaded."""
        self.looking.close()
        super().close()


def used_twice(id: int) -> BadInput:
    """Two sequences of one id."""
    return BadInput("sequence_id", f"{id} was started while a sequence of that id was running; both end here")
