"""What a model's tokenizer knows: how many tokens a text has, and how a chat becomes one text."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from labdoor.errors import ApiError
from labdoor.requests import Message
from labkit.client.chat_template import ChatTemplate, end_id_of, object_in, unreadable_tokenizer
from labkit.errors import LabError

SHORT, PIECE = 2**11, 2**16  # characters of a text that are counted at once: in the loop; in a thread
COUNTING = ThreadPoolExecutor(2, "count")
#: For a model without a template of its own: a line for each turn, and the beginning of the answer's line.
PLAIN = ChatTemplate.parse("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:")
PLAIN_STOP = "\nuser:"  # a base model goes on with the next question


@dataclass(frozen=True)
class Vocabulary:
    """A model's tokenizer and chat template; without a tokenizer tokens are not counted.

    Attributes:
        end_id: the token that ends a text.
        context: tokens that the model sees.
        stops: stop strings that the template needs.
    """

    tokenizer: Tokenizer | None = None
    end_id: int | None = None
    context: int | None = None
    template: ChatTemplate = PLAIN
    stops: Sequence[str] = (PLAIN_STOP,)

    @classmethod
    def of(cls, folder: str | None) -> Vocabulary:
        """That of a folder with a tokenizer, else the plain one. Raises LabError: it cannot be read."""
        if not folder or not ((path := Path(folder)) / "tokenizer.json").is_file():
            return cls()
        try:
            tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
            tokenizer.no_truncation()
            model = object_in(path / "config.json")
        except Exception as error:  # the tokenizers library raises no type of its own
            raise unreadable_tokenizer(folder, error) from None
        context = model.get("max_position_embeddings") or model.get("n_positions")
        if template := ChatTemplate.of(folder):
            return cls(tokenizer, end_id_of(folder), context, template, stops=())
        return cls(tokenizer, end_id_of(folder), context)

    def render(self, messages: Sequence[Message]) -> str:
        """The text that the model continues. Raises ApiError if the template takes no such conversation."""
        turns = [{"role": "system" if m.role == "developer" else m.role, "content": m.text} for m in messages]
        try:
            return self.template.render(turns)
        except LabError as error:
            raise ApiError(400, f"messages: {error.what}: {error.why}", "messages") from None

    async def count(self, text: str, special: bool = True) -> int | None:
        """How many tokens a text has, but no more than it takes to exceed the context; None without a tokenizer.

        A text of more than one piece is counted piece by piece: it may seem to have a token more for each.
        """
        if self.tokenizer is None:
            return None
        if len(text) <= SHORT:
            return self._count(self.tokenizer, text, special)
        return await asyncio.get_running_loop().run_in_executor(COUNTING, self._count, self.tokenizer, text, special)

    def _count(self, tokenizer: Tokenizer, text: str, special: bool) -> int:
        tokens = 0
        for start in range(0, len(text), PIECE):
            # The one method of the tokenizer that lets other threads run, and the one that keeps the least.
            (piece,) = tokenizer.encode_batch_fast(
                [text[start : start + PIECE]], add_special_tokens=special and not start
            )
            tokens += len(piece)
            if tokens > (self.context or math.inf):
                break
        return tokens
