"""GPT-2's requests in slots, whose keys and values may be kept ones, or come from another server."""

import json
import time
from collections.abc import Sequence as Batch
from dataclasses import dataclass
from typing import Any

from labserve.driver import DriverThread, PieceAnswers
from labserve.gpt2.decoders import CachedDecoder
from labserve.gpt2.kept import Desk, HandedOver, Kept, put_in_slot, take_from_slot
from labserve.gpt2.loading import count_slots, load_with_tokenizer
from labserve.gpt2.sequences import Sequence
from labserve.guard import Guard
from labserve.observe.gauges import Value
from labserve.observe.recorder import Recorder
from labserve.params import BadInput, read_single
from labserve.slot_scheduler import SlotEngine, SlotScheduler
from labserve.text.logprobs import LOGPROBS
from labserve.triton import input_reader, parameter, text_of

ROUTE = "route"  # why a router sent a request to this server: written beside what the server found
MOST_ROUTE = 2**14  # bytes of it
TEXTS, SCORES, CANDIDATES = ("policy", "session", "replica"), "scores", "candidates"


@dataclass(slots=True, eq=False)
class Transfer:
    """What a request has to do with other servers, and how much of its prompt was not computed here."""

    hands_over: bool  # after its first token, to another server
    taken_over: HandedOver | None  # what another server has computed of it
    route: dict[str, Any]  # why a router chose this server
    cached: int = 0


class Texts(SlotEngine):
    """The requests of a model instance, with their slots of the KV cache: what computes a step.

    The parameters `step_ms` and `token_ms` pace it: a step takes the first, and the second for each token of a prompt,
    whatever this machine needs. `load_ms` and `load_mib_s` pace what is loaded from outside of the slots in the same
    way. With 0 nothing is paced.
    """

    def __init__(self, args: dict[str, str]) -> None:
        begin, decoder, tokenizer = load_with_tokenizer(args)
        assert isinstance(decoder, CachedDecoder)
        self._begin, self.decoder = begin, decoder
        self._desk = Desk(parameter(args, "run_dir"))
        self._kept = Kept(decoder.cache, int(parameter(args, "kept_blocks")))
        self._step_ms = float(parameter(args, "step_ms"))
        self._token_ms = float(parameter(args, "token_ms"))
        self._load_ms = float(parameter(args, "load_ms"))
        self._load_mib_s = float(parameter(args, "load_mib_s"))
        self._transfers: dict[Sequence, Transfer] = {}  # of the live sequences
        self._loaded = {"loaded_bytes": 0, "load_us": 0}  # since the last step
        guard, scheduler = Guard(args), SlotScheduler(self, count_slots(args))
        counters: dict[str, Value] = {"cached_tokens_total": 0, "moved_bytes_total": {"sent": 0, "fetched": 0}}
        self.recorder = Recorder(args, scheduler, lambda: tokenizer, {"waiting": 0, **counters})
        self.driver = DriverThread(guard, scheduler, PieceAnswers(), self.recorder, self._read, forgiving=True)
        self._guard = guard

    def _read(self, request: Any, number: int) -> Sequence:
        self._guard.check(request)
        read = input_reader(request)
        sequence = self._begin(text_of(request, "text_input"), request.parameters())
        sequence.request, sequence.id = request, request.request_id()
        hands_over = bool(read_single(read, "hand_over", False))
        route = route_of(read_single(read, ROUTE, b""))
        name = read_single(read, "handed_over", b"")
        taken_over = self._desk.fetch(name.decode(errors="replace")) if name else None
        if sequence.rivals is not None and (hands_over or taken_over):
            raise BadInput(LOGPROBS, "a request that is handed over has none of its first token")
        if taken_over:
            if hands_over or taken_over.ids[:-1] != sequence.ids:
                raise BadInput("handed_over", "this is another text, or it is to be handed over again")
            if len(taken_over.ids) >= sequence.limit:
                raise BadInput("max_tokens", "the other server has made as many tokens already")
        self._transfers[sequence] = Transfer(hands_over, taken_over, route)
        return sequence

    def join(self, request: Sequence) -> None:
        """A sequence gets a slot, with the keys and values that are there of its prompt."""
        began, transfer = time.monotonic(), self._transfers[request]
        slot = request.slot = self.decoder.cache.take()
        assert slot is not None  # there are as many as the scheduler has
        if transfer.taken_over:
            ids, kv = transfer.taken_over
            put_in_slot(self.decoder.cache, slot, 0, kv)
            loaded = kv.nbytes
            transfer.cached = len(ids) - 1
            self.recorder.count(moved_bytes_total={"fetched": loaded})
        else:
            transfer.cached = self._kept.find(request.ids)
            loaded = self._kept.load(request.ids[: transfer.cached], slot)
            self.recorder.count(cached_tokens_total=transfer.cached)
        request.cached = transfer.cached
        if loaded:
            paced_s = self._load_ms / 1e3
            if self._load_mib_s:
                paced_s += loaded / 2**20 / self._load_mib_s
            time.sleep(max(0.0, began + paced_s - time.monotonic()))
            self._loaded["loaded_bytes"] += loaded
            self._loaded["load_us"] += round((time.monotonic() - began) * 1e6)
        if transfer.taken_over:
            self._pass_on(request, transfer.taken_over.ids[-1])

    def _pass_on(self, sequence: Sequence, token: int) -> None:
        """Send the first token, which is the other server's."""
        sequence.sampler.skip()
        sequence.piece = sequence.accept(token)
        self.driver.stream(sequence, [token])

    def tokens(self, batch: Batch[Sequence]) -> list[int]:
        return [len(sequence.ids) - sequence.cached for sequence in batch]

    def step(self, batch: Batch[Sequence]) -> dict[str, Any]:
        """One pass over what is new of these, with which a sequence may leave for another server."""
        began, fields = time.monotonic(), dict[str, Any](self._loaded)
        self._loaded = {"loaded_bytes": 0, "load_us": 0}
        new = {sequence: self._transfers[sequence] for sequence in batch if sequence.new}
        prompts = sum(len(sequence.ids) - sequence.cached for sequence in new)
        fields["cached"] = [new[sequence].cached if sequence in new else 0 for sequence in batch]
        fields["routes"] = {sequence.name: transfer.route for sequence, transfer in new.items() if transfer.route}
        self.decoder.step(batch)
        fields["engine_us"] = round((time.monotonic() - began) * 1e6)
        paced_s = (self._step_ms + self._token_ms * prompts) / 1e3
        time.sleep(max(0.0, began + paced_s - time.monotonic()))
        for sequence, transfer in new.items():
            if transfer.hands_over and not sequence.finished:
                self._hand_over(sequence)
        return fields

    def _hand_over(self, sequence: Sequence) -> None:
        """Leave a sequence for another server."""
        try:
            assert sequence.slot is not None
            kv = take_from_slot(self.decoder.cache, sequence.slot, slice(sequence.cached))
            # By this name the other server fetches it.
            sequence.outputs["handed_over"], sequence.piece = self._desk.hand_over(sequence.ids, kv), ""
            self.recorder.count(moved_bytes_total={"sent": kv.nbytes})
            sequence.finish("handed over")
        except Exception as error:  # the disk is full: this request ends, and no other
            sequence.fail(error)

    def release(self, request: Sequence) -> None:
        """Its slot is free; the full blocks of what was computed stay."""
        if request.slot is not None:
            if request.why != "failed":
                self._kept.keep(request.ids[: request.cached], request.slot)
            self.decoder.release(request)
        self._transfers.pop(request, None)


def route_of(raw: bytes) -> dict[str, Any]:
    """The decision in the input `route`, as labkit.client.router writes it; {} if there is none. Raises BadInput.

    Numbers that JSON does not have (a score of minus infinity) become texts, so that a line of the log stays JSON.
    """
    if not raw:
        return {}
    if len(raw) > MOST_ROUTE:
        raise BadInput(ROUTE, f"it has {len(raw):,} bytes; at most {MOST_ROUTE:,} are logged")
    try:
        route = json.loads(raw, parse_constant=str)
    except (ValueError, RecursionError):
        route = None
    if not _is_decision(route):
        raise BadInput(ROUTE, f"expected the {', '.join(TEXTS)}, {SCORES} and {CANDIDATES} of a router's decision")
    decision: dict[str, Any] = route
    return decision


def _is_decision(route: Any) -> bool:
    """Nothing deeper, and nothing else: what a client sends is written into a log that others read."""
    if not isinstance(route, dict) or not set(route) <= {*TEXTS, SCORES, CANDIDATES}:
        return False
    scores, candidates = route.get(SCORES), route.get(CANDIDATES)
    return (
        all(isinstance(route.get(name, ""), str) for name in TEXTS)
        and isinstance(scores, dict)
        and _is_flat(scores)
        and isinstance(candidates, dict)
        and candidates.keys() == scores.keys()
        and all(map(_is_flat, candidates.values()))
    )


def _is_flat(values: Any) -> bool:
    return isinstance(values, dict) and all(isinstance(value, int | float | str) for value in values.values())
