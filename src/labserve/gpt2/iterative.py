"""GPT-2's sequences for a model that Triton schedules again for every token (`iterative_sequence: true`)."""

import json
from collections.abc import Iterator
from collections.abc import Sequence as Batch
from contextlib import contextmanager
from typing import Any

import triton_python_backend_utils as pb_utils

from labserve.gpt2.roster import LOOK_S, Roster, used_twice
from labserve.gpt2.running import START, Running
from labserve.gpt2.sequences import Sequence
from labserve.observe.periodic import PeriodicCall
from labserve.params import BadInput
from labserve.triton import parameter

END = pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END


class IterativeRunning(Running):
    """Keeps sequences between two executions. Triton may hand over any number of them, in any order.

    `roster` knows which sequences hold a slot, and finds sequences whose clients have gone. Its lock is held for a
    whole execution and for a whole look, and whoever holds it owns everything here.
    """

    def __init__(self, args: dict[str, str]) -> None:
        super().__init__(args, queues=True, waiting=0)
        batching = json.loads(args["model_config"])["sequence_batching"]
        idle_s = int(batching["max_sequence_idle_microseconds"]) / 1e6
        self._gather_s = int(parameter(args, "gather_microseconds", "0")) / 1e6
        self.roster = Roster(self.scheduler, self._end, self.recorder.clock.now, idle_s)
        self.live = self.roster.live
        self._here: list[Sequence] = []
        self.looking = PeriodicCall(LOOK_S, self._look)

    @contextmanager
    def execution(self, requests: Batch[Any]) -> Iterator[list[Sequence]]:
        """Surround an execution. Yields the sequences of its requests, as :meth:`sequences_of`."""
        with self.roster.lock:
            self.roster.begin()
            try:
                self.roster.sweep()
                self._here = self.sequences_of(requests)
                yield self._here
            except Exception:  # Triton answers all of them with the error, and is not to be asked after them again
                for request in requests:
                    self.roster.rest(request.correlation_id())
                raise
            finally:
                for sequence in self._here:
                    sequence.request = None  # it is Triton's again
                self._here = []
                self.roster.end()

    def sequences_of(self, requests: Batch[Any]) -> list[Sequence]:
        """The sequence of each request that is not refused. Two requests with the same id are both refused."""
        sequences = super().sequences_of(requests)
        for sequence in list(sequences):
            if self.roster.live.get(sequence.correlation) is not sequence:  # its id was used again in this batch
                sequences.remove(sequence)
                self._refuse(sequence.request, used_twice(sequence.correlation))
        return sequences

    def _sequence_of(self, request: Any) -> Sequence:
        id, flags = request.correlation_id(), request.flags()
        sequence = self.roster.find(id, starts=bool(flags & START))
        if flags & END:  # Triton has forgotten the id by now, and cannot schedule it again
            raise BadInput("sequence_end", "a sequence ends here with its last token; leave this flag out")
        sequence = sequence or self._begin(request)
        sequence.request, sequence.sender = request, request.get_response_sender()
        self.roster.enter(id, sequence)
        return sequence

    def free_slots(self, sequences: Batch[Sequence]) -> int:
        """How many of these may get a slot now."""
        return self.roster.free_slots([sequence.correlation for sequence in sequences])

    def awaits_others(self, batch: Batch[Sequence]) -> bool:
        """Whether to give this batch back once, since others are on their way that could share its step."""
        ids = [sequence.correlation for sequence in batch]
        return not ids or self.roster.out_of_step(ids) or self.roster.too_early(ids, self._gather_s)

    def step(self, batch: Batch[Sequence]) -> None:
        """One more token for each sequence of the batch; see :meth:`Running.step`. Those without a slot get one."""
        self.roster.admit(batch)
        super().step(batch)
        self.roster.note_step([sequence.correlation for sequence in batch])

    def _waiting(self, batch: Batch[Sequence]) -> list[Sequence]:
        chosen = set(batch)
        return [sequence for sequence in self._here if sequence not in chosen]

    def _ended(self, sequence: Sequence) -> None:
        self.roster.rest(sequence.correlation, sequence.why)  # other requests with its id are refused for a while

    def _end(self, sequence: Sequence, why: str) -> None:
        """A sequence leaves the roster, and nobody waits for its answer any more."""
        if not sequence.finished:
            sequence.finish(why)
        self.scheduler.leave(sequence)
        self.driver.end(sequence, answer=False)

    def _refuse(self, request: Any, error: Exception) -> None:
        super()._refuse(request, error)
        self.roster.rest(request.correlation_id())

    def _look(self) -> None:
        """While nothing is executed: free the slots of sequences whose clients have gone."""
        if self.roster.live and self.roster.lock.acquire(blocking=False):
            try:
                self.roster.begin()
                self.roster.sweep()
                if self.recorder.pending:
                    self.recorder.change()
            finally:
                self.roster.lock.release()

    def close(self) -> None:
        """The model is being unloaded."""
        self.looking.close()
        super().close()
