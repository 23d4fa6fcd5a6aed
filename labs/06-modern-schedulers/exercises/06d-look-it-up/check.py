"""Texts and drafts with one right answer each, then the real server: the plain answers, in fewer steps.

The model's texts repeat a few sentences with other names in them, so a lookup finds much. Greedy answers depend on the
prompts alone, and so do the steps.
"""

from pathlib import Path

MODEL, PLAIN = "iterative-gpt2", "simple-gpt2"
PROMPTS = (
    "The fox",
    "My favourite food is",
    "Once upon a time",
    "In winter the",
    "I have lived in Seoul",
    "Programming in Rust is like",
    "The hammer on the table is",
    "Paris is a quiet",
)
MOST, LEAST = 4, 0.88  # draft tokens of a step; steps for a token that a lookup stays below here
TEXTS = "an answer is not the plain one: only tokens that the model chooses too may be accepted."
SLOW = "the server needs nearly a step for each token: propose more, or accept what is right."
LIMIT = "propose returned more draft tokens than `most`: the request has a limit, and so has a step."


def check(trial):
    if functions_right(trial):
        served(trial)


def functions_right(trial):
    searcher = str(Path(__file__).with_name("properties.py"))
    found = trial.call(searcher, "search", str(trial.folder), trial.rng.randrange(10**6))
    said, sentence = (found["case"], found["sentence"]) if found else ("none", "")
    return trial.expect("wrong cases of the two functions", "none", said, found is None, sentence)


def served(trial):
    requests = [(prompt, trial.rng.randint(140, 160)) for prompt in trial.rng.sample(PROMPTS, 6)]
    with trial.explain_errors(LIMIT, because="draft tokens, of at most"):
        records = trial.answers(MODEL, requests, ignore_eos=True)
    plain = trial.answers(PLAIN, requests, ignore_eos=True)
    equal = sum(one.text == other.text for one, other in zip(records, plain, strict=True))
    trial.expect("answers as simple-gpt2 has them", f"{len(requests)}", equal, equal == len(requests), TEXTS)
    made = rows = guessed = accepted = most = 0
    for step in trial.steps(MODEL):
        columns = (step.phase, step.made, step.guessed, step.accepted)
        for letter, tokens, drafts, right in zip(*columns, strict=True):
            if letter == "d":
                rows, made, most = rows + 1, made + tokens, max(most, drafts)
                guessed, accepted = guessed + drafts, accepted + right
    total = sum(tokens - 1 for _, tokens in requests)
    trial.expect("tokens after the first of each answer", f"{total}", made, made == total, TEXTS)
    trial.expect("draft tokens of a request in a step, at most", f"{MOST}", most, most <= MOST, LIMIT)
    words = f"{rows / made:.2f} ({accepted} of {guessed} draft tokens accepted)"
    trial.expect("steps for a token", f"at most {LEAST}", words, rows <= LEAST * made, SLOW)
