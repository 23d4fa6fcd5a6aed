"""The score of a server for a request: the server with the highest one gets it.

The router calls `scores` for each request, with what it knows of each server:

    prompt      tokens of the request's prompt
    cached      how many of them the server should have, from the beginning
    requests    requests that were sent there and are not answered yet
    tokens      tokens of their prompts that were not cached
"""


def score(candidate):
    """How good it would be to send the request there."""
    return candidate["cached"]


def scores(candidates):
    return [score(candidate) for candidate in candidates]
