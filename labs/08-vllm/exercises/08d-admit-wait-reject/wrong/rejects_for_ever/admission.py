"""The gate before an engine that takes every request: which requests may go in, and when?"""

crowds = []


def admit(state):
    """Called for each request at the gate, in order of arrival, before each step: "admit", "wait" or "reject"."""
    each = state["decode_ms"] + state["prompt_token_ms"] * state["prompt"] / state["answer"]
    room = state["step_ms"] + each * (state["running"] + 1) <= state["tpot_ms"]
    if state["ahead"] > 4:
        crowds.append(state["now"])
    if crowds:
        return "reject"
    return "admit" if room else "wait"
