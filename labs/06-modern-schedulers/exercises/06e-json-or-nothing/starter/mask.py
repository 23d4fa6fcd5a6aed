"""Which tokens may come next, so that an answer is a JSON object. This file is next to iterative-gpt2's model.py."""


class Mask:
    """One answer. The server asks `allowed` before each token, samples one of these tokens, and calls `accept`."""

    def __init__(self, words, end):
        """`words[token]` is the text of each token: "" if it is the end token (`end`) or has no text of its own."""
        self.words, self.end = words, end

    def allowed(self):
        """True or False for each token: may it come next?"""
        return [True] * len(self.words)

    def accept(self, token):
        """The token was sampled."""
