"""GPT-2's requests in a loop of their own; their keys and values may be kept ones, or come from another server."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from labserve.gpt2.decoders import CachedDecoder
from labserve.gpt2.decoders import step as compute
from labserve.gpt2.kept import Desk, HandedOver, Kept, put_in_slot, take_from_slot
from labserve.gpt2.loading import count_slots, load_with_tokenizer
from labserve.gpt2.routed import INPUT, route_of
from labserve.gpt2.sequences import Sequence
from labserve.loop import Job, Loop
from labserve.observe.gauges import Value
from labserve.observe.texts import GrownText
from labserve.params import BadInput
from labserve.tensors import read_single
from labserve.text.logprobs import LOGPROBS, as_json
from labserve.triton import input_reader, parameter, respond, text_of


@dataclass(eq=False, kw_only=True)
class Text(Job):
    """A request: the text that it continues, and what another server has computed of it (`taken_over`), if any."""

    sequence: Sequence
    hands_over: bool  # after its first token, to another server
    taken_over: HandedOver | None
    route: dict[str, Any]  # why a router chose this server
    cached: int = 0  # tokens of its prompt that were not computed here

    @property
    def todo(self) -> int:
        return len(self.sequence.ids) - self.sequence.cached

    def grown(self, made: int) -> GrownText:
        return GrownText(self.name, self.sequence.ids, self.sequence.prompt, made)


class Texts(Loop):
    """The requests of a model instance, with their slots of the KV cache.

    `step`: as of Loop. The parameters `step_ms` and `token_ms` pace it: a step takes the first, and the second for each
    token of a prompt, whatever this machine needs. `load_ms` and `load_mib_s` pace what is loaded from outside of the
    slots in the same way. With 0 nothing is paced.
    """

    def __init__(self, args: dict[str, str], step: Callable[[], None]) -> None:
        begin, decoder, tokenizer = load_with_tokenizer(args)
        assert isinstance(decoder, CachedDecoder)
        self._begin, self.decoder, self._tokenizer = begin, decoder, tokenizer
        self._desk = Desk(parameter(args, "run_dir"))
        self._kept = Kept(decoder.cache, int(parameter(args, "kept_blocks")))
        self._step_ms = float(parameter(args, "step_ms"))
        self._token_ms = float(parameter(args, "token_ms"))
        self._load_ms = float(parameter(args, "load_ms"))
        self._load_mib_s = float(parameter(args, "load_mib_s"))
        counters: dict[str, Value] = {"cached_tokens_total": 0, "moved_bytes_total": {"sent": 0, "fetched": 0}}
        super().__init__(args, count_slots(args), self._text_of, step, lambda: tokenizer, **counters)

    def _text_of(self, request: Any) -> Text:
        read = input_reader(request)
        sequence = self._begin(text_of(request, "text_input"), request.parameters())
        hands_over = bool(read_single(read, "hand_over", False))
        route = route_of(read_single(read, INPUT, b""))
        name = read_single(read, "handed_over", b"")
        taken_over = self._desk.fetch(name.decode(errors="replace")) if name else None
        if sequence.rivals is not None and (hands_over or taken_over):
            raise BadInput(LOGPROBS, "a request that is handed over has none of its first token")
        if taken_over:
            if hands_over or taken_over.ids[:-1] != sequence.ids:
                raise BadInput("handed_over", "this is another text, or it is to be handed over again")
            if len(taken_over.ids) >= sequence.limit:
                raise BadInput("max_tokens", "the other server has made as many tokens already")
        return Text(request, (), 0, sequence=sequence, hands_over=hands_over, taken_over=taken_over, route=route)

    def begin(self) -> None:
        """Waiting requests take the free slots, with the keys and values that are there of their prompts."""
        self.more |= {"loaded_bytes": 0, "load_us": 0}
        while self.waiting and self.free_slots:
            text = self.admit()
            if text is not None:
                self._load(text)

    def _load(self, text: Any) -> None:
        began, sequence = time.monotonic(), text.sequence
        sequence.slot = self.decoder.cache.take()
        if text.taken_over:
            ids, kv = text.taken_over
            put_in_slot(self.decoder.cache, sequence.slot, 0, kv)
            loaded = kv.nbytes
            text.cached = len(ids) - 1
            self.steps.gauges.update(moved_bytes_total={"fetched": loaded})
        else:
            text.cached = self._kept.find(sequence.ids)
            loaded = self._kept.load(sequence.ids[: text.cached], sequence.slot)
            self.steps.gauges.update(cached_tokens_total=text.cached)
        sequence.cached = text.cached
        if loaded:
            paced_s = self._load_ms / 1e3
            if self._load_mib_s:
                paced_s += loaded / 2**20 / self._load_mib_s
            time.sleep(max(0.0, began + paced_s - time.monotonic()))
            self.more["loaded_bytes"] += loaded
            self.more["load_us"] += round((time.monotonic() - began) * 1e6)
        if text.taken_over:  # its first token is the other server's
            sequence.sampler.skip()
            self.send(text, sequence.accept(text.taken_over.ids[-1]))

    def compute(self, texts: list[Any]) -> list["str | Exception"]:
        """One pass over what is new of these: the text of the next token of each, or why there is none."""
        began = time.monotonic()
        prompts = sum(text.todo for text in texts if not text.made)
        self.more["cached"] = [0 if text.made else text.cached for text in texts]
        self.more["routes"] = {text.name: text.route for text in texts if text.route and not text.made}
        pieces = compute(self.decoder, [text.sequence for text in texts])
        self.more["engine_us"] = round((time.monotonic() - began) * 1e6)
        paced_s = (self._step_ms + self._token_ms * prompts) / 1e3
        time.sleep(max(0.0, began + paced_s - time.monotonic()))
        return pieces

    def send(self, job: Any, piece: "str | Exception") -> None:
        """A request's next token; or, where it is to be handed over, the name by which the other server fetches it."""
        sequence = job.sequence
        job.made += 1
        try:
            if isinstance(piece, Exception):
                raise piece
            if job.hands_over and not sequence.finished:
                kv = take_from_slot(self.decoder.cache, sequence.slot, slice(sequence.cached))
                name = self._desk.hand_over(sequence.ids, kv)
                respond(job.request, "", last=True, handed_over=name)
                self.steps.gauges.update(moved_bytes_total={"sent": kv.nbytes})
                sequence.finish("handed over")
            else:
                log_probs = "" if sequence.rivals is None else as_json(sequence.log_probs, self._tokenizer)
                respond(job.request, piece, last=sequence.finished, logprobs=log_probs)
            job.why = sequence.why
        except Exception as error:
            job.why = "failed"
            self.guard.refuse(job.request, error)

    def release(self, job: Any) -> None:
        """Its slot is free; the full blocks of what was computed stay."""
        sequence = job.sequence
        if sequence.slot is not None:
            if job.why != "failed":
                self._kept.keep(sequence.ids[: sequence.cached], sequence.slot)
            self.decoder.release(sequence)
