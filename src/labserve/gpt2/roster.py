"""The sequences of an iterative model between two executions: which has a slot, which waits, whose client has gone.

Triton executes a sequence again and again, and says nothing when it stops. Its client may have gone, which Triton 2.51
notices at different moments: of a gRPC stream at once, of an HTTP connection only when a response cannot be written. So
the roster asks for each sequence that does not come back.

An id is in one of these states:

=========  =======================  ====================================================================================
state      where it is kept         how it goes on
=========  =======================  ====================================================================================
unknown    nowhere                  waiting, with a request that has the flag START; any other request is refused
waiting    `live`                   running, when a step has a slot for it (`admit`)
running    `live` and `running`     resting with its last token or an error; waiting, if it was silent and another
                                    sequence needed its slot; running otherwise
silent     as before                none of its requests came for `PATIENCE_S`, and the model was idle for `FREE_S` of
                                    that. As before when one comes; unknown when its client has gone (`sweep`), when it
                                    begins again, or when Triton has given it up as idle
resting    `_resting`               every request is refused; unknown when none has come for as long as a silent one
=========  =======================  ====================================================================================
"""

import threading
import time
from collections.abc import Callable
from collections.abc import Sequence as Batch
from typing import NamedTuple

from labserve.gpt2.sequences import Sequence
from labserve.params import BadInput
from labserve.slot_scheduler import SlotScheduler

PATIENCE_S = 1.0  # of silence; then a sequence is given up, and its id is free again
FREE_S = 0.1  # of this time the model must have been idle: a sequence is not silent because a step takes long
ASK_S = 0.01  # between two questions about a sequence whose slot another one needs
LOOK_S = 0.25  # between two looks at all silent sequences
LEAST_S = 0.001  # a shorter wait would gather nothing: to be given back takes as long
MOST_ASKED = 64  # in one look; a question is a message to the server and back


class Stamp(NamedTuple):
    """A moment: seconds of the model's clock, and how many of them no execution was in progress."""

    now: float
    free: float


class Roster:
    """Sequences by their correlation id. Its table of states is above.

    Args:
        scheduler: has the slots.
        end: what to do about a sequence that leaves, and why it does, in the step log's word.
        now: the model's clock.
        idle_s: after so long Triton itself forgets a sequence.

    Every field belongs to the thread that holds `lock`: Triton's during an execution, the looking thread between two.
    Another thread may read `live`: a sequence leaves it after its slot is free and its end is noted.
    """

    def __init__(
        self, scheduler: SlotScheduler, end: Callable[[Sequence, str], None], now: Callable[[], float], idle_s: float
    ) -> None:
        self.lock = threading.Lock()
        self.slots = scheduler.max_running
        self.live: dict[int, Sequence] = {}  # in the order in which they were last executed
        self.running: dict[int, Sequence] = {}  # those of them that have a slot
        self._scheduler, self._end, self._clock, self._idle_s = scheduler, end, now, idle_s
        self._resting: dict[int, Stamp] = {}  # ids whose sequence ended or was refused, and when
        self._unfinished: set[int] = set()  # ids that had a token in the last step and need another
        self._gave_back = self._gathered = False
        self._busy = 0.0  # seconds of executions
        self._round = 0  # executions
        self._asked = self._looked = 0.0
        self.stamp = Stamp(self._clock(), self._clock())

    # -- an execution -----------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """An execution begins, or the silent sequences are looked at between two executions."""
        self._round += 1
        now = self._clock()
        self.stamp = Stamp(now, now - self._busy)

    def end(self) -> None:
        """The execution ends; its time does not count as a sequence's silence."""
        self._busy += self._clock() - self.stamp.now

    def find(self, id: int, starts: bool) -> Sequence | None:
        """The sequence that a request goes on with; None if the request begins one.

        Raises BadInput if it can do neither. What a client left that has gone is forgotten.
        """
        kept = self.live.get(id)
        if id in self._resting:
            raise BadInput("sequence_id", f"{id} was in use just now; it can be used again in {PATIENCE_S:g} s")
        if kept is not None and (kept.round == self._round or (starts and not self._silent(kept))):
            # Triton keeps one entry for an id and drops it when either of the two ends: neither could go on alone.
            raise used_twice(id)
        if kept is None and not starts:
            raise BadInput("sequence_id", f"{id} is not known: used twice, or idle for too long")
        if kept is not None and starts:
            self.forget(id, "cancelled")
            return None
        return kept

    def enter(self, id: int, sequence: Sequence) -> None:
        """A sequence is in this execution, to go on or to begin."""
        sequence.round = self._round
        self._stamp(id, sequence)

    def free_slots(self, ids: list[int]) -> int:
        """How many of the sequences in an execution may get a slot: the free ones, and those of silent sequences.

        If they are too few, it asks whether the clients of the sequences outside the execution have gone.
        """
        here = set(ids)
        missing = [id for id in self.running if id not in here]
        missing.sort(key=lambda id: self.running[id].seen)
        newcomers = len(here - self.running.keys())
        if newcomers > self.slots - len(self.running):
            self._ask(missing)
        silent = [id for id in missing if id in self.running and self._silent(self.running[id])]
        return self.slots - len(self.running) + len(silent)

    def out_of_step(self, ids: list[int]) -> bool:
        """Whether to wait for sequences that had a token in the last step and are on their way back.

        Triton forms the next batch while a step is computed, without the sequences of that step. They and a newcomer
        could take turns, each in a batch of their own. If the newcomer is given back once, it meets them in the queue.
        It is given back only once in a row: a sequence whose client has gone does not come back.
        """
        self._gave_back = not self._gave_back and not self._unfinished.issubset(ids)
        return self._gave_back

    def too_early(self, ids: list[int], gather_s: float) -> bool:
        """Whether newcomers of an idle model are given back once, after a moment in which others may have come.

        Otherwise, of several requests that come together, the first would get a step of its own while the others wait.
        """
        at_once = self._gathered or self._unfinished or len(ids) == self.slots or gather_s < LEAST_S
        self._gathered = not at_once
        if self._gathered:
            time.sleep(gather_s)
        return self._gathered

    def admit(self, batch: Batch[Sequence]) -> None:
        """Give each of these a slot: a free one, or that of a sequence that fell silent.

        If the silent sequence comes back, it waits for a slot, and its keys and values are computed again.
        """
        for sequence in batch:
            if sequence.running:
                continue
            if len(self.running) == self.slots:
                longest_silent = min(self.running, key=lambda id: self.running[id].seen)
                silent = self.running.pop(longest_silent)
                silent.running = False
                self._scheduler.evict(silent)
            self.running[sequence.correlation] = sequence
            sequence.running = True
            self._scheduler.join(sequence)

    def note_step(self, ids: list[int]) -> None:
        """These had a token. Those that want another come back as soon as Triton queues them."""
        now = self._clock()
        self.stamp = Stamp(now, self.stamp.free)
        self._busy = now - self.stamp.free
        self._unfinished = {id for id in ids if id in self.running}
        for id in self._unfinished:
            self._stamp(id, self.live[id])

    # -- the ends of sequences --------------------------------------------------------------------------------------

    def sweep(self) -> None:
        """Forget sequences whose clients have gone, and sequences that Triton itself has given up by now."""
        while self.live:  # the one that was silent for longest is the first
            id, sequence = next(iter(self.live.items()))
            if self.stamp.now - sequence.seen < self._idle_s:
                break
            self.forget(id, "idle")
        while self._resting and self._quiet(next(iter(self._resting.values()))):
            self._resting.pop(next(iter(self._resting)))
        if self.stamp.now - self._looked < LOOK_S:
            return
        self._looked = self.stamp.now
        silent = [
            id
            for id, sequence in self.live.items()
            if self._silent(sequence) and self.stamp.now - sequence.asked >= PATIENCE_S
        ]
        for id in silent[:MOST_ASKED]:
            self._drop_cancelled(id)

    def rest(self, id: int, why: str = "failed") -> None:
        """A sequence has ended, with which Triton drops what it has of that id.

        Of other requests with the id that are in its queue by now none could be rescheduled, and their clients would
        hear nothing. So all that come are turned away, until the id was quiet for a while.
        """
        self._resting.pop(id, None)
        self._resting[id] = self.stamp  # at the end: they are in the order in which they end
        self.forget(id, why)

    def forget(self, id: int, why: str) -> None:
        """The only way out for a sequence: its slot is free again, its end is noted, and last it leaves `live`."""
        self._unfinished.discard(id)
        sequence = self.live.get(id)
        if sequence is not None:
            sequence.running = False
            self._end(sequence, why)
            self.running.pop(id, None)
            del self.live[id]

    # -- silence ----------------------------------------------------------------------------------------------------

    def _stamp(self, id: int, sequence: Sequence) -> None:
        sequence.seen, sequence.free = self.stamp
        self.live.pop(id, None)
        self.live[id] = sequence  # at the end: they stay in the order of silence

    def _quiet(self, since: Stamp) -> bool:
        return self.stamp.now - since.now >= PATIENCE_S and self.stamp.free - since.free >= FREE_S

    def _silent(self, sequence: Sequence) -> bool:
        return self._quiet(Stamp(sequence.seen, sequence.free))

    def _ask(self, ids: list[int]) -> None:
        """Others want the slots of these: free them up to the first one whose client is still there."""
        if self.stamp.now - self._asked < ASK_S:
            return
        if not all(self._drop_cancelled(id) for id in ids):
            self._asked = self.stamp.now

    def _drop_cancelled(self, id: int) -> bool:
        sequence = self.live[id]
        sequence.asked = self.stamp.now
        if sequence.sender is None or not sequence.sender.is_cancelled():
            return False
        self.forget(id, "cancelled")
        return True


def used_twice(id: int) -> BadInput:
    """Two sequences of one id."""
    return BadInput("sequence_id", f"{id} was started while a sequence of that id was running; both end here")
