"""Speculative decoding by prompt lookup. This file is next to iterative-gpt2's model.py."""

LONGEST = 3


def propose(ids, most):
    """The draft: at most `most` tokens that may follow `ids`, the prompt and the answer so far. [] for none."""
    for length in range(min(LONGEST, len(ids) - 1), 0, -1):
        end = ids[-length:]
        for at in range(len(ids) - length - 1, -1, -1):  # the latest first, and never the end itself
            if ids[at : at + length] == end:
                return ids[at + length : at + length + most]
    return []


def accept(draft, chosen):
    """How many tokens of the draft to keep.

    `chosen[n]` is the token that the model chooses (greedy) after `ids` and the first n tokens of the draft: there is
    one more of them than of the draft. The server adds draft[:kept] to the answer, and then chosen[kept].
    """
    return len(draft)
