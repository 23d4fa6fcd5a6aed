"""GPT-2 for a model whose lesson is the scheduling: sequences begin, get a token a step, and leave when finished."""

import json
from collections.abc import Sequence as Batch
from typing import Any

import triton_python_backend_utils as pb_utils
from tokenizers import Tokenizer

from labserve.answers import PieceAnswers
from labserve.driver import Driver
from labserve.gpt2.decoders import DecoderEngine
from labserve.gpt2.kvcache import KVCache
from labserve.gpt2.loading import count_slots, load_with_tokenizer
from labserve.gpt2.sequences import Sequence
from labserve.guard import Guard
from labserve.observe.gauges import Value
from labserve.observe.recorder import Recorder
from labserve.slot_scheduler import SlotScheduler
from labserve.text.logprobs import as_json
from labserve.triton import text_of

START = pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START


class SequenceAnswers(PieceAnswers):
    """A response for each token, with its log probabilities where they are asked for."""

    def __init__(self, guard: Guard, tokenizer: Tokenizer) -> None:
        super().__init__(guard)
        self._tokenizer = tokenizer

    def outputs(self, request: Sequence) -> dict[str, str]:
        return {} if request.rivals is None else {"logprobs": as_json(request.log_probs, self._tokenizer)}


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
        self.scheduler = SlotScheduler(DecoderEngine(self.decoder), self.slots, queues, asks=not queues)
        self.recorder = Recorder(args, self.scheduler, lambda: tokenizer, gauges)
        self.driver = Driver(self.guard, self.scheduler, SequenceAnswers(self.guard, tokenizer), self.recorder)
        self._rescheduled = "sequence_batching" in json.loads(args["model_config"])
        self.live: dict[int, Sequence] = {}  # those of an iterative model between two steps, by correlation id

    @property
    def cache(self) -> KVCache | None:
        """The keys and values of the sequences, if they are kept; an exercise's observer (observe/held.py) reads it."""
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

    def step(self, batch: Batch[Sequence]) -> None:
        """One more token for each sequence of the batch, sent to its client.

        A sequence with its last token, or one that fails, is `finished`; an error of one does not affect the others.
        """
        if not batch:
            return
        plan = self.scheduler.plan_of([*batch], self._waiting(batch))
        try:
            self.recorder.wait(plan)
            self.driver.compute(plan)
        except BaseException:  # Triton answers the requests with the error
            self.driver.forget(batch)
            raise
        for sequence in batch:
            if sequence.finished:
                self._ended(sequence)

    def _ended(self, sequence: Sequence) -> None:
        """A sequence is finished, and has its answer."""
        self.live.pop(sequence.correlation, None)

    def _waiting(self, batch: Batch[Sequence]) -> list[Sequence]:
        """The sequences without a slot while this batch is computed."""
        return []

    def close(self) -> None:
        """The model is being unloaded."""
        self.driver.close()
