"""How many steps the requests of a load take."""


def steps(answers, slots):
    """The steps with static batching, and with in-flight batching."""
    return len(answers), len(answers)
