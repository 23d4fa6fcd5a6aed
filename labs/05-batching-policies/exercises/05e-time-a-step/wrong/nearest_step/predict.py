"""How long a step takes, from what is in it: a model that is fitted on recorded steps."""


def predict(recorded, steps):
    """Milliseconds of each of `steps`.

    recorded: dicts with decoding, prompt_tokens, context and ms. steps: the same without ms.
    """

    def apart(one, other):
        names = ("decoding", 20), ("prompt_tokens", 2), ("context", 0.1)
        return sum(weight * abs(one[name] - other[name]) for name, weight in names)

    return [min(recorded, key=lambda other: apart(step, other))["ms"] for step in steps]
