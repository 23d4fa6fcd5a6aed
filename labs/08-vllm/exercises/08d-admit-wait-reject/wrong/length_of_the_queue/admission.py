"""The gate before an engine that takes every request: which requests may go in, and when?"""


def admit(state):
    """Called for each request at the gate, in order of arrival, before each step: "admit", "wait" or "reject"."""
    return "reject" if state["ahead"] > 4 else "admit"
