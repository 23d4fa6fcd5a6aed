"""The texts of the step log, made only while the log takes texts."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import Tokenizer

from labsched.steplog import MOST_PROMPT, StepLog
from labserve.text.detok import Detokenizer


class GrownText(NamedTuple):
    """A request after a step: its name, its ids from the prompt's on, and how many are the prompt's and the step's."""

    name: str
    ids: Sequence[int]
    prompt: int
    made: int


class StepTexts:
    """The part of each text that is in the log already.

    `tokenizer` is asked for when texts are wanted for the first time; None: they cannot be had.
    """

    def __init__(self, log: StepLog, tokenizer: Callable[[], Tokenizer | None]) -> None:
        self._log = log
        self._open = tokenizer
        self._tokenizer: Tokenizer | None = None
        self._known: dict[str, Detokenizer] = {}

    def fields(self, batch: Sequence[GrownText], pieces: Sequence[str] | None = None) -> dict[str, Any]:
        """The fields `texts`, `prompts` and `before` of a step's line; {} while the log takes no texts.

        `pieces` are the texts, if the model has made them anyway.
        """
        if not self._log.texts:
            self._known = {}
            return {}
        self._tokenizer = self._tokenizer or self._open()
        if self._tokenizer is None:
            return {}
        prompts, before = {}, {}
        for name, ids, prompt, made in batch:
            if name not in self._known:
                grown = self._known[name] = Detokenizer(self._tokenizer)
                prompts[name] = self._decode(ids[:prompt])[:MOST_PROMPT]
                if earlier := _spell(grown, ids[prompt : len(ids) - made]):
                    before[name] = earlier
        if pieces is None:
            pieces = [_spell(self._known[name], ids[len(ids) - made :]) for name, ids, _, made in batch]
        return {"texts": list(pieces), "prompts": prompts, "before": before}

    def forget(self, name: str) -> None:
        """The request has ended."""
        self._known.pop(name, None)

    def _decode(self, ids: Sequence[int]) -> str:
        assert self._tokenizer is not None
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=False)
        return text


def _spell(text: Detokenizer, ids: Sequence[int]) -> str:
    return "".join(map(text.add, ids))


def find_tokenizer(folder: str) -> Tokenizer | None:
    """The tokenizer of a folder of weights or of an engine; None if it has none that can be read."""
    try:
        return Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))
    except Exception:  # the library raises nothing narrower
        return None
