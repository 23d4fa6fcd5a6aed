"""The highest rate of requests that keeps the limits, from a recording: found before any such load is run."""


def knee(recording):
    """Requests per second. What a recording holds is in task.md."""
    each = recording["step_ms"] + recording["decode_ms"]
    took = [each * output + recording["prompt_token_ms"] * prompt for prompt, output in recording["requests"]]
    return 1000 * len(took) / sum(took)
