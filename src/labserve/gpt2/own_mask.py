"""Answers that follow a learner's ``mask.py`` (exercise 06e) in the place of llguidance."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from labserve.gpt2.own import OwnFile
from labserve.params import json_schema
from labserve.text.grammar import Grammar, Grammars
from labserve.text.sampling import as_array
from labserve.text.vocabulary import is_whole_text, spelling

FILE = "mask.py"


class _OwnGrammar(Grammar):
    """Where one answer stands, by the file's `Mask`. It ends with the end token, and with nothing else."""

    def __init__(self, words: list[str], end_id: int, own: OwnFile) -> None:
        self._words, self.end_id, self._own = words, end_id, own
        self._mask = own.call(own.find("Mask"), list(words), end_id)
        self._allowed: NDArray[np.bool_] | None = None  # until the next token

    def allowed(self) -> NDArray[np.bool_]:
        """[vocabulary], true for the tokens that may come next. Raises Refusal if the file fails or allows none."""
        if self._allowed is None:
            allowed = self._own.call(lambda: [bool(value) for value in self._mask.allowed()])
            self._own.require(len(allowed) == len(self._words), f"allowed returned {len(allowed)} values")
            self._own.require(any(allowed), "allowed leaves no token at all")
            self._allowed = np.array(allowed)
        return self._allowed

    def mask(self, scores: Any) -> NDArray[Any]:
        return np.where(self.allowed(), as_array(scores), -np.inf)

    def accept(self, token: int) -> bool:
        self._own.call(self._mask.accept, token)
        self._allowed = None
        return token == self.end_id

    def take_seconds(self) -> float:
        return 0.0


class OwnGrammars(Grammars):
    """Makes them: the schema of a request says only that it wants one."""

    def __init__(self, tokenizer: Tokenizer, size: int, end_id: int | None, own: OwnFile) -> None:
        super().__init__(tokenizer, size, end_id)
        self._own, self._end = own, end_id or 0
        self._words = token_texts(tokenizer, size, self._end)

    def open(self, raw: str) -> Grammar:
        json_schema(raw)
        return _OwnGrammar(self._words, self._end, self._own)


def token_texts(tokenizer: Tokenizer, size: int, end_id: int) -> list[str]:
    """The text of each token, [size]; "" for the end token, and for one that is half a character."""
    spelled = spelling(tokenizer)
    raw = [spelled.get(id, b"") if id != end_id else b"" for id in range(size)]
    return [text.decode() if is_whole_text(text) else "" for text in raw]
