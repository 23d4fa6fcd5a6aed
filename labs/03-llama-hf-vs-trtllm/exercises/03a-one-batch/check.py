"""Six prompts of different lengths at once: a batch must form, and each answer must be what its prompt gives alone."""

PROMPTS = (
    "I am going to",
    "The fox",
    "My favourite food is",
    "The best thing about a long winter is",
    "In the middle of the night we heard",
    "Once upon a time there was a king who had",
    "Let me tell you what I know about",
    "Anna",
)


ALONE = "every prompt went through the model alone: one call of `compute` can take all of them."
IN_PARTS = "prompts that came together went through the model in several batches: call `compute` once for all of them."
TOO_LONG = (
    "an answer goes on after its last token: the batch runs as long as its longest answer, "
    "so cut each to its own limit."
)
TOO_SHORT = (
    "an answer is cut off too early: the batch runs as long as its longest answer, "
    "and the padding is a part of each row's length."
)
SWAPPED = "an answer went to another request: the rows are returned in the order of the prompts."
PADDING = "an answer is not what its prompt gives alone: is the padding on the left, and is the mask 0 there?"


def check(trial):
    prompts = trial.rng.sample(PROMPTS, 6)
    requests = list(zip(prompts, trial.rng.sample(range(4, 16), 6), strict=True))
    records = trial.at_once("llama-python-batched", requests)
    steps = trial.steps("llama-python-batched")
    if max((step.batch for step in steps), default=0) == 1:  # Triton batches what waits, and nothing did
        raise trial.TooBusy("the prompts came to the model one by one")
    largest = max((step.more["widest"] for step in steps), default=0)
    trial.expect("rows of the largest forward pass", "more than 1", largest, largest > 1, ALONE)
    parted = sum(step.more["widest"] < step.batch for step in steps)
    trial.expect("executions whose prompts were not all in one forward pass", "0", parted, parted == 0, IN_PARTS)
    alone = trial.at_once("llama-python", requests)
    pairs = [(record.text, right.text) for record, right in zip(records, alone, strict=True)]
    wrong = [(text, right) for text, right in pairs if text != right]
    said = PADDING
    if all(text.startswith(right) for text, right in wrong):
        said = TOO_LONG
    elif all(right.startswith(text) for text, right in wrong):
        said = TOO_SHORT
    elif sorted(text for text, _ in wrong) == sorted(right for _, right in wrong):
        said = SWAPPED
    trial.expect("answers as llama-python gives them", "6 of 6", f"{6 - len(wrong)} of 6", not wrong, said)
