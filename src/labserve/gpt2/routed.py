"""Why a router sent a request to this server: taken with the request, and written beside what the server found."""

import json
from typing import Any

from labserve.params import BadInput

INPUT = "route"
MOST = 2**14  # bytes
TEXTS, SCORES, CANDIDATES = ("policy", "session", "replica"), "scores", "candidates"


def route_of(raw: bytes) -> dict[str, Any]:
    """The decision in the input `route`, as labkit.client.router writes it; {} if there is none. Raises BadInput.

    Numbers that JSON does not have (a score of minus infinity) become texts, so that a line of the log stays JSON.
    """
    if not raw:
        return {}
    if len(raw) > MOST:
        raise BadInput(INPUT, f"it has {len(raw):,} bytes; at most {MOST:,} are logged")
    try:
        route = json.loads(raw, parse_constant=str)
    except (ValueError, RecursionError):
        route = None
    if not _is_decision(route):
        raise BadInput(INPUT, f"expected the {', '.join(TEXTS)}, {SCORES} and {CANDIDATES} of a router's decision")
    decision: dict[str, Any] = route
    return decision


def _is_decision(route: Any) -> bool:
    """Nothing deeper, and nothing else: what a client sends is written into a log that others read."""
    if not isinstance(route, dict) or not set(route) <= {*TEXTS, SCORES, CANDIDATES}:
        return False
    scores, candidates = route.get(SCORES), route.get(CANDIDATES)
    return (
        all(isinstance(route.get(name, ""), str) for name in TEXTS)
        and isinstance(scores, dict)
        and _is_flat(scores)
        and isinstance(candidates, dict)
        and candidates.keys() == scores.keys()
        and all(map(_is_flat, candidates.values()))
    )


def _is_flat(values: Any) -> bool:
    return isinstance(values, dict) and all(isinstance(value, int | float | str) for value in values.values())
