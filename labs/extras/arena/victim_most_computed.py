"""Preempt the request with the most computed tokens (most computed first, vLLM's RFC #54644).

Claim: it frees the most memory at once, and throws away the most work.
"""


def victim(view):
    return max(view.running, key=lambda one: (one.cached, one.came)).id
