"""The highest rate of requests that keeps the limits, from a recording: found before any such load is run."""


def knee(recording):
    """Requests per second. What a recording holds is in task.md."""
    slots = recording["slots"]
    step = recording["step_ms"] + recording["decode_ms"] * slots
    output = sum(output for _, output in recording["requests"]) / len(recording["requests"])
    return 1000 * slots / (step * output)  # all slots are always taken
