"""The gate before an engine that takes every request: which requests may go in, and when?"""


def admit(state):
    """Called for each request at the gate, in order of arrival, before each step: "admit", "wait" or "reject"."""
    if state["now"] > state["arrived"] + state["ttft_ms"] / 2:
        return "reject"
    return "admit" if state["running"] < 4 else "wait"
