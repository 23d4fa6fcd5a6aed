"""GPT-2 for a model whose lesson is the scheduling: sequences begin, get a token a step, and leave when finished."""

import json
import time
from collections.abc import Sequence as Batch
from typing import Any

import triton_python_backend_utils as pb_utils

from labserve.gpt2 import lookup
from labserve.gpt2.decoders import CachedDecoder, step
from labserve.gpt2.kvcache import KVCache
from labserve.gpt2.loading import count_slots, load_with_tokenizer
from labserve.gpt2.own import file_beside
from labserve.gpt2.sequences import Sequence
from labserve.guard import Guard
from labserve.observe.gauges import Value
from labserve.observe.steps import Steps
from labserve.observe.texts import GrownText
from labserve.text.logprobs import as_json
from labserve.triton import respond, text_of

START = pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START
LOOK_AROUND = 16  # tokens between two questions whether a client is still there; each is a message to the server


class Running:
    """The sequences of a model instance. What it computes, sends and ends, it also logs and counts (`steps`).

    As many sequences may run at a time as the model has `slots`: a parameter, else its `max_batch_size`.

    Args:
        args: those of Triton's `initialize`.
        gauges: further metrics of the model (labserve.observe.steps).
    """

    def __init__(self, args: dict[str, str], **gauges: Value) -> None:
        self.slots = count_slots(args)
        self._new, self.decoder, self._tokenizer = load_with_tokenizer(args)
        self._lookup: lookup.Lookup | None = None
        own = file_beside(args, lookup.FILE)
        if own and isinstance(self.decoder, CachedDecoder):
            self._lookup = lookup.Lookup(self.decoder, own)
        self.guard = Guard(args)
        self.steps = Steps(args, self.slots, lambda: self._tokenizer, **gauges)
        self._rescheduled = "sequence_batching" in json.loads(args["model_config"])
        self.live: dict[int, Sequence] = {}  # those of an iterative model between two steps, by correlation id

    @property
    def cache(self) -> "KVCache | None":
        """The keys and values of the sequences, if they are kept."""
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
        self.steps.join(sequence.name)
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
        sequence.request, sequence.id = request, self._id_of(request)
        sequence.name = self.steps.arrive(request, str(sequence.id or ""))
        return sequence

    def step(self, batch: Batch[Sequence]) -> None:
        """One more token for each sequence of the batch, sent to its client.

        A sequence with its last token, or one that fails, is `finished`; an error of one does not affect the others.
        """
        if not batch:
            return
        names = [sequence.name for sequence in batch]
        phase = "".join("p" if sequence.new else "d" for sequence in batch)
        tokens = [len(sequence.ids) - sequence.cached for sequence in batch]
        if self._lookup:
            tokens = [count + drafted for count, drafted in zip(tokens, self._lookup.propose(batch), strict=True)]
        before = [len(sequence.ids) for sequence in batch]
        try:
            with self.steps.step(names, phase, tokens, self._waiting(batch)) as observed:
                started = time.monotonic()
                texts = self._lookup.step(batch) if self._lookup else step(self.decoder, batch)
                observed.more["engine_us"] = round((time.monotonic() - started) * 1e6)
                observed.more |= (self._lookup or self.decoder).observed(batch)
                for place, cached in enumerate(observed.more.get("cached", ())):
                    tokens[place] -= cached  # known only after the blocks were taken
                observed.pieces = ["" if isinstance(text, Exception) else text for text in texts]
                for sequence, text, count in zip(batch, texts, before, strict=True):
                    made = 0 if isinstance(text, Exception) else len(sequence.ids) - count
                    observed.grown.append(GrownText(sequence.name, sequence.ids, sequence.prompt, made))
                    self._send(sequence, text)
                    if sequence.finished:
                        self.end(sequence)
        except BaseException:  # Triton answers the requests with the error
            for sequence in batch:
                self.decoder.release(sequence)
            raise

    def _waiting(self, batch: Batch[Sequence]) -> list[str] | None:
        """The names of the sequences without a slot while this batch is computed; None where none can wait."""
        return None

    def _send(self, sequence: Sequence, text: "str | Exception") -> None:
        """Answer with the text of the new token. If it is an error, or cannot be sent, the sequence ends here."""
        try:
            log_probs = "" if sequence.rivals is None else as_json(sequence.log_probs, self._tokenizer)
            respond(sequence.request, text, last=sequence.finished, logprobs=log_probs)
            if not sequence.finished and self._has_left(sequence):
                sequence.finish("cancelled")
                respond(sequence.request, "", last=True)
        except Exception as error:
            sequence.finish("failed")
            self.guard.refuse(sequence.request, error)

    def _has_left(self, sequence: Sequence) -> bool:
        """Whether its client has gone; asked now and then."""
        asks = (len(sequence.ids) - sequence.prompt) % LOOK_AROUND == 2
        return asks and bool(sequence.request.is_cancelled())

    def end(self, sequence: Sequence) -> None:
        """A sequence is finished: free what it holds."""
        self.decoder.release(sequence)
        self.live.pop(sequence.id, None)
        self.steps.end(sequence.name, sequence.why)

    def close(self) -> None:
        """The model is being unloaded."""
        self.steps.close()
