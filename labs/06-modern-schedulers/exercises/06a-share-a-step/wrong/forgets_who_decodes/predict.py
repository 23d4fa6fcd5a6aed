"""In which step each request has its first token: predicted from the rules of task.md, without a server."""


def predict(budget, lengths):
    """For each request the number of the step that makes its first token; the first step is 1.

    budget: the tokens that a step computes at most. lengths: (prompt, answer) tokens of each, in order of arrival.
    """
    left = [prompt for prompt, _ in lengths]
    made = [0 for _ in lengths]
    first = [0 for _ in lengths]
    step = 0
    while 0 in first:
        step += 1
        decoding = [n for n, (_, answer) in enumerate(lengths) if left[n] == 0 and made[n] < answer]
        room = budget
        for n, tokens in enumerate(left):
            part = min(tokens, room)
            room -= part
            left[n] -= part
            if part and left[n] == 0:
                first[n], made[n] = step, 1
        for n in decoding:
            made[n] += 1
    return first
