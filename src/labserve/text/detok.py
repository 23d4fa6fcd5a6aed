"""Text from tokens, one token at a time, when one character may span several tokens."""

from tokenizers import Tokenizer

_INCOMPLETE = "\N{REPLACEMENT CHARACTER}"


class Detokenizer:
    """Turns a growing list of token ids into pieces of text.

    The pieces joined are exactly what the tokenizer's `decode` gives for all ids at once. A token that ends
    inside a character gives ""; `last=True` gives out whatever was held back. Ids that the tokenizer does not
    know are without text, as in `decode`.
    """

    __slots__ = ("_context", "_given", "_known", "_pending", "tokenizer")

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._known = tokenizer.get_vocab_size()
        # Each step decodes only a short window: the ids since the last clean boundary, after a few ids of
        # context (some tokenizers write a token differently at the beginning of a text).
        self._context: list[int] = []
        self._pending: list[int] = []
        self._given = 0  # characters of the window's text that were given out

    def add(self, token: int, last: bool = False) -> str:
        """The text that is certain now that `token` has come."""
        if token < self._known:
            self._pending.append(token)
        elif not last:
            return ""
        text = self._decode(self._context + self._pending)
        # An unfinished character is decoded as replacement characters, which the next token may change.
        certain = len(text) if last else len(text.rstrip(_INCOMPLETE))
        piece = text[self._given : certain]
        self._given = max(self._given, certain)
        if piece and certain == len(text):
            self._context, self._pending = self._pending, []
            self._given = len(self._decode(self._context))
        return piece

    def _decode(self, ids: list[int]) -> str:
        text: str = self.tokenizer.decode(ids, skip_special_tokens=False)
        return text
