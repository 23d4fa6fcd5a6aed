"""A multi-level feedback queue: requests with much output go down, long waits go up (FastServe: arXiv 2305.05920).

A prompt's length decides the first level (skip-join). The victim comes from the lowest level.

Claim: short answers finish early although their lengths are unknown.
"""

LEVELS = (64, 256, 1024)  # tokens of prompt and answer, up to which a request is on a level
PATIENCE = 32


def level(request):
    if request.overtaken >= PATIENCE:
        return -1
    return sum(request.prompt + 4 * request.made > most for most in LEVELS)


def line(view):
    return [request.id for request in sorted(view.waiting, key=lambda one: (level(one), one.came))]


def victim(view):
    return max(view.running, key=lambda one: (level(one), one.came)).id
