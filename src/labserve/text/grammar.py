"""Answers that follow a JSON schema: at each step a mask leaves only the tokens that can continue a valid text.

The grammar is llguidance's, which is also one of vLLM's (vllm/v1/structured_output/backend_guidance.py).
"""

import json
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from labserve.params import STRUCTURED, BadInput, Refusal, json_schema
from labserve.text.sampling import as_array

COMPILED_S = 0.8  # to compile a schema, with its first mask
INSTALL = "pip install -e '.[grammar]'"


class Grammar:
    """Where one answer stands in its grammar.

    Args:
        matcher: an `llguidance.LLMatcher` before its first token.
        size: how many scores a model gives, [vocabulary].
        end_id: the token that ends an answer, and has no text in it.

    Raises:
        BadInput: no text follows the schema, or it is too complex.
    """

    def __init__(self, matcher: Any, size: int, end_id: int) -> None:
        self._matcher, self._size, self.end_id = matcher, size, end_id
        self._allowed: NDArray[np.bool_] | None = None
        self._seconds = 0.0
        self._check()
        self.allowed()  # the slow first mask is made now
        self._seconds = 0.0

    def allowed(self) -> NDArray[np.bool_]:
        """[vocabulary], true for the tokens that may come next; the end token is one when the text may end here.

        It stays the same until `accept`. Raises BadInput if the grammar has become too complex.
        """
        if self._allowed is None:
            began = time.perf_counter()
            packed = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
            self._check()
            bits = np.unpackbits(packed, bitorder="little", count=self._size)
            self._allowed = bits.astype(bool)
            self._seconds += time.perf_counter() - began
            if not self._allowed.any():
                raise BadInput(STRUCTURED, "no token of the model can continue this text by the schema")
        return self._allowed

    def mask(self, scores: Any) -> NDArray[Any]:
        """Scores [vocabulary], minus infinity for the tokens that may not come next."""
        allowed = self.allowed()
        began = time.perf_counter()
        masked = np.where(allowed, as_array(scores), -np.inf)
        self._seconds += time.perf_counter() - began
        return masked

    def accept(self, token: int) -> bool:
        """Take the next token of the answer. Returns whether the answer is whole. Raises BadInput as `allowed`."""
        began = time.perf_counter()
        self._matcher.consume_token(token)
        self._allowed = None
        self._check()
        self._seconds += time.perf_counter() - began
        return bool(self._matcher.is_stopped())

    def take_seconds(self) -> float:
        """The time that all of this took since the last call."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds

    def _check(self) -> None:
        if self._matcher.is_error():
            why = _first_line(self._matcher.get_error())
            if why.startswith("NoExtension"):
                why = "no text follows this schema"
            raise BadInput(STRUCTURED, why)


class Grammars:
    """Makes the grammars of a model's requests.

    Args:
        size: how many scores the model gives, [vocabulary].
        end_id: the token that ends a text; None: the one that the tokenizer names.
    """

    def __init__(self, tokenizer: Tokenizer, size: int, end_id: int | None) -> None:
        self._tokenizer, self._size, self._end_id = tokenizer, size, end_id
        self._make: Callable[[str], Grammar] | None = None  # of a schema; opened at the first request that has one
        self._busy: threading.Thread | None = None

    def open(self, raw: str) -> Grammar:
        """The grammar of a request's parameter `structured_outputs`. Raises Refusal.

        A few short patterns that must all hold can keep llguidance busy for minutes, whatever its limits say; it lets
        other threads run meanwhile. So it has a thread and a time, and while that thread is busy no other gets one.
        """
        schema = json_schema(raw)
        self._make = self._make or self._load()
        if self._busy and self._busy.is_alive():
            raise BadInput(STRUCTURED, "another schema keeps the server busy; try again in a moment")
        made: SimpleQueue[Grammar | Exception] = SimpleQueue()
        self._busy = threading.Thread(target=_put, args=(made, self._make, json.dumps(schema)), daemon=True)
        self._busy.start()
        try:
            result = made.get(timeout=COMPILED_S)
        except Empty:
            raise BadInput(STRUCTURED, f"the schema is too complex: it takes more than {COMPILED_S:g} s") from None
        self._busy.join()
        if isinstance(result, ValueError) and not isinstance(result, Refusal):
            raise BadInput(STRUCTURED, _first_line(str(result))) from None
        if isinstance(result, Exception):
            raise result
        return result

    def _load(self) -> Callable[[str], Grammar]:
        try:
            from llguidance import LLMatcher, LLParserLimits, LLTokenizer
        except ImportError:
            raise BadInput(STRUCTURED, f"this server lacks the package llguidance; {INSTALL} installs it") from None
        words = LLTokenizer(self._tokenizer.to_str(), n_vocab=self._size, eos_token=self._end_id)

        def make(schema: str) -> Grammar:
            # White space between values is left out: a model that likes it would never end.
            grammar = LLMatcher.grammar_from_json_schema(schema, {"whitespace_flexible": False})
            matcher = LLMatcher(words, grammar, log_level=0, limits=LLParserLimits(verbose_errors=False))
            return Grammar(matcher, self._size, words.eos_token)

        return make


def _put(made: "SimpleQueue[Grammar | Exception]", make: Callable[[str], Grammar], schema: str) -> None:
    try:
        made.put(make(schema))
    except Exception as error:  # raised where it is waited for
        made.put(error)


def _first_line(message: str) -> str:
    return message.partition("\n")[0][:300]
