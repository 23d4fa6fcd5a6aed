"""How many steps the requests of a load take."""


def steps(answers, slots):
    """The steps with static batching, and with in-flight batching."""
    static = sum(max(answers[begin : begin + slots]) for begin in range(0, len(answers), slots))
    free = [0] * slots  # after which step each slot is free
    for answer in answers:
        free[free.index(min(free))] += answer
    return static, max(free)
