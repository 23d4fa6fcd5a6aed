"""One request's text as it grows: its tokens, its limit, and how each next token is chosen and spelled."""

import time
from dataclasses import dataclass, field
from typing import Any

from tokenizers import Tokenizer

from labserve.params import SAMPLING, BadInput, RequestParameter, parse_parameters, text
from labserve.slot_scheduler import SlotRequest
from labserve.text.detok import Detokenizer
from labserve.text.logprobs import MOST
from labserve.text.sampling import Sampler

DEFAULT_MAX_TOKENS = 32
FIELDS = {
    "max_tokens": RequestParameter(int, 1),
    "ignore_eos": RequestParameter(bool),
    "logprobs": RequestParameter(int, 0, MOST),
    **SAMPLING,
}


@dataclass(slots=True, eq=False)
class Sequence(SlotRequest):
    """A text in the making. `ids` begin with the prompt's; `slot` and `cached` belong to the decoder."""

    ids: list[int]
    prompt: int  # how many of them are the prompt's
    limit: int  # tokens, prompt included, at which it ends
    eos: int | None  # the token that ends it earlier; None: nothing does
    sampler: Sampler
    detokenizer: Detokenizer
    rivals: int | None = None  # how many tokens it wants log probabilities of beside its own; None: of none at all
    slot: int | None = None
    cached: int = 0  # leading ids whose keys and values are in the slot
    correlation: int = 0  # Triton's correlation id, if its model is iterative, which also needs:
    sender: Any = None  # where its last answer went
    round: int = 0  # the last execution that it was in,
    seen: float = field(default_factory=time.monotonic)  # when that was,
    free: float = 0.0  # and how long no execution had been in progress until then (see `running.Stamp`)
    asked: float = 0.0  # when its client was last asked after

    @property
    def output(self) -> list[int]:
        return self.ids[self.prompt :]

    @property
    def made(self) -> int:
        return len(self.ids) - self.prompt

    @property
    def new(self) -> bool:
        """Whether no token was generated yet."""
        return not self.made

    def accept(self, token: int) -> str:
        """Append the next token; returns the text that is now certain. Sets `finished` on the last one."""
        self.ids.append(token)
        if token == self.eos or len(self.ids) >= self.limit:
            self.finish("stop" if token == self.eos else "length")
        return self.detokenizer.add(token, last=self.finished)


def new_sequence(
    prompt: bytes, parameters: str, tokenizer: Tokenizer, context: int, end_id: int | None = None
) -> Sequence:
    """The sequence that a request begins: `prompt` is its text_input, `parameters` its parameters as JSON.

    `context` is how many tokens the model can see at most, `end_id` the token that ends a text. Raises BadInput, which
    names the input at fault.
    """
    given = parse_parameters(parameters, FIELDS)
    # Few tokens spell more than a dozen bytes: what is longer than this is refused before it costs anything.
    words = text(prompt, "text_input", most_bytes=64 * context)
    ids: list[int] = tokenizer.encode(words).ids
    if not ids:
        raise BadInput("text_input", "the tokenizer finds no token in it")
    room = context - len(ids)
    if room < 1:
        raise BadInput("text_input", f"{len(ids):,} tokens; the model sees {context:,}, the answer included")
    limit = given.get("max_tokens", min(DEFAULT_MAX_TOKENS, room))
    if limit > room:
        raise BadInput("max_tokens", f"{limit:,} is too many: of {context:,} tokens the prompt leaves {room:,}")
    return Sequence(
        ids,
        prompt=len(ids),
        limit=len(ids) + limit,
        eos=None if given.get("ignore_eos") else end_id,
        sampler=Sampler.of(given),
        detokenizer=Detokenizer(tokenizer),
        rivals=given.get("logprobs"),
    )
