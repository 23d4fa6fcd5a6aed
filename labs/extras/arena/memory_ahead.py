"""Admit only what has room to grow, by the blocks that the batch may come to need (MC-SF: arXiv 2502.07115).

The paper knows each answer's length, and here it is guessed to be half of the limit.

Claim of the paper: within a few percent of the optimum in hindsight, with true lengths.
"""

SHARE = 0.5


def blocks(view, tokens):
    return -(-int(tokens) // view.block_size)


def reserve(view):
    """Blocks that the running requests may still need, in addition to their present blocks."""
    whole = sum(blocks(view, one.prompt + max(one.made + 1, SHARE * one.limit)) for one in view.running)
    return max(0, whole - sum(blocks(view, one.prompt + one.made + 1) for one in view.running))


def line(view):
    return [
        one.id for one in sorted(view.waiting, key=lambda one: (one.overtaken < 32, one.prompt + one.limit, one.came))
    ]
