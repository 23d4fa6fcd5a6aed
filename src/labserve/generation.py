"""One text generation from request to last token, and the batch step that many of them share."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import AutoTokenizer

from labserve import params as requests
from labserve.decoder import CachedDecoder, Decoder, RecomputingDecoder, State
from labserve.detok import IncrementalText
from labserve.params import GenerationParams
from labserve.sampling import Sampler, choose


@dataclass(slots=True)
class Generation:
    """A prompt being continued."""

    state: State
    params: GenerationParams
    sampler: Sampler
    text: IncrementalText
    made: int = 0
    seen: float = 0.0  # when a step last included it (time.monotonic())

    @property
    def is_new(self) -> bool:
        return self.made == 0


class Engine:
    """Model and tokenizer of one instance. Everything that knows GPT-2 is below here; when to step is the caller's.

    Args:
        model_path: a folder in Hugging Face's layout.
        kv_cache: keep keys and values between steps.
        slots: most sequences in one step (and slots of the cache).
        threads: CPU threads of one step.
    """

    def __init__(self, model_path: str, kv_cache: bool, slots: int, device: str, threads: int) -> None:
        torch.set_num_threads(threads)
        self.tokenizer = AutoTokenizer.from_pretrained(model_path)
        self.decoder: Decoder = (
            CachedDecoder(model_path, slots, device) if kv_cache else RecomputingDecoder(model_path, device)
        )
        self.eos = self.decoder.model.config.eos_token_id

    def begin(self, prompt: bytes | str, parameters: str | None) -> Generation:
        """A generation for a request's prompt and JSON parameters. Raises BadRequest."""
        asked = requests.parse(parameters)
        text = requests.prompt_text("text_input", prompt)
        ids = self.tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids
        requests.fits("text_input", len(ids), asked.max_tokens, self.decoder.context)
        return Generation(State(ids), asked, Sampler(asked), IncrementalText(self.tokenizer))

    def step(self, batch: Sequence[Generation]) -> list[tuple[str, bool]]:
        """One token for every generation of ``batch``, in one forward pass: (its text, whether it is the last)."""
        logits = self.decoder.step([generation.state for generation in batch])
        now = time.monotonic()
        answers = []
        for generation, id_ in zip(batch, choose(logits, [g.sampler for g in batch]), strict=True):
            generation.state.ids.append(id_)
            generation.made += 1
            generation.seen = now
            asked = generation.params
            last = generation.made >= asked.max_tokens or (id_ == self.eos and not asked.ignore_eos)
            answers.append((generation.text.add(id_, last), last))
        return answers

    def end(self, generation: Generation) -> None:
        """Give back what a generation holds."""
        self.decoder.release(generation.state)
