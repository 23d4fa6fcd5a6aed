"""Speculative decoding by prompt lookup. This file is next to iterative-gpt2's model.py."""


def propose(ids, most):
    """The draft: at most `most` tokens that may follow `ids`, the prompt and the answer so far. [] for none."""
    return []


def accept(draft, chosen):
    """How many tokens of the draft to keep.

    `chosen[n]` is the token that the model chooses (greedy) after `ids` and the first n tokens of the draft: there is
    one more of them than of the draft. The server adds draft[:kept] to the answer, and then chosen[kept].
    """
    return 0
