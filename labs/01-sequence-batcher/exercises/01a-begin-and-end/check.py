"""Six sequences by the learner's client on four slots: each begins once, ends once, and all are answered."""

import json

PROMPTS = ("The fox", "My favourite food is", "Once upon a time", "In winter the", "I have lived in Seoul", "Anna")
NO_START = "Triton refused a request: the request that begins a sequence must carry START."
EARLY_END = "Triton refused a request that came after END: only the last request of a sequence may carry END."
NO_END = (
    "a sequence waited in vain for a slot: without END a sequence keeps its slot until it has been idle for a minute."
)


def check(trial):
    prompts = trial.rng.sample(PROMPTS, len(PROMPTS))
    steps = trial.rng.randint(3, 5)
    try:
        with trial.explain_errors(NO_END, because="timed out"):
            texts = trial.client("client.py", json.dumps(prompts), str(steps))
    except trial.Error as error:
        if "must specify the START flag" not in error.why:
            raise
        done = trial.steps("tokenizer")
        early = steps * sum(sum(step.more["end"]) for step in done) > sum(step.batch for step in done)
        trial.expect("the sequences", "all answered", error.why, False, EARLY_END if early else NO_START)
        return
    if not trial.expect(
        "texts that are printed",
        f"a list of {len(prompts)} texts",
        f"{len(texts)} texts" if isinstance(texts, list) else f"no list: {str(texts)[:40]}",
        isinstance(texts, list) and len(texts) == len(prompts) and all(isinstance(text, str) for text in texts),
        "client.py must print the texts, one for each prompt, as a list in JSON: `main` does that, leave it as it is.",
    ):
        return
    executed = trial.steps("tokenizer")
    starts, ends = (sum(sum(step.more[key]) for step in executed) for key in ("start", "end"))
    trial.expect(
        "started sequences",
        f"{len(prompts)}",
        starts,
        starts == len(prompts),
        "not every sequence began exactly once: START on every request makes the model begin it again.",
    )
    trial.expect(
        "sequences ended",
        f"{len(prompts)}",
        ends,
        ends == len(prompts),
        "not every sequence ended: a sequence without END keeps its slot until it has been idle for too long.",
    )
    grown = sum(
        text.startswith(prompt) and len(text) > len(prompt) for text, prompt in zip(texts, prompts, strict=True)
    )
    trial.expect(
        "texts that grew",
        f"{len(prompts)}",
        grown,
        grown == len(prompts),
        "a text is not its prompt and what came back: does each sequence have its own text?",
    )
