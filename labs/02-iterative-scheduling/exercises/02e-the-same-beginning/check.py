"""Random calls to the block manager in a process of its own (those of 02d), then the real server on it."""

import random
from pathlib import Path

from tokenizers import Tokenizer

SIZE = 16
PROPERTIES = Path(__file__).parents[1] / "02d-a-block-table" / "properties.py"
MODEL, PLAIN = "iterative-gpt2", "simple-gpt2"
WORDS = ("fox", "river", "baker", "winter", "Seoul", "hammer", "bread", "the", "a", "is", "near", "and", "of", "quiet")
TEXTS = "the server's answers are not the plain ones: it reads and writes keys and values where your tables say."
FOUND = "the server computed prompt tokens that are in the cache, or found others: allocate says how many are found."


def check(trial):
    if rules_kept(trial):
        with trial.explain_errors(TEXTS, because=r"table\(|append returned|allocate returned"):
            served(trial)


def rules_kept(trial):
    found = trial.call(str(PROPERTIES), "search", str(trial.folder), trial.rng.randrange(10**6), True, False)
    said = "kept"
    if found:
        said = "\n".join([f"broken, with {found['blocks']} blocks of 2 tokens", *found["calls"]])
    sentence = found["sentence"] if found else ""
    return trial.expect("rules in random calls", "kept", said, found is None, sentence)


def served(trial):
    """Prompts with one beginning, then more than the cache holds; one after the other."""
    new = random.SystemRandom()  # the server's cache outlives a check
    tokenizer = Tokenizer.from_file(f"{trial.tokenizer_dir}/tokenizer.json")

    def text(words):
        return " ".join(new.choice(WORDS) for _ in range(words)) + f" {new.randrange(10**6)}"

    first = text(trial.rng.randint(30, 50))
    prompts = [f"{first} {text(trial.rng.randint(3, 9))}" for _ in range(4)]
    prompts += [text(trial.rng.randint(40, 60)) for _ in range(4)]
    requests = [(prompt, trial.rng.randint(6, 20)) for prompt in prompts]
    records = [trial.answers(MODEL, [request], ignore_eos=True)[0] for request in requests]
    steps = [step for step in trial.steps(MODEL) if step.batch]
    plain = trial.answers(PLAIN, requests, ignore_eos=True)
    equal = sum(one.text == other.text for one, other in zip(records, plain, strict=True))
    trial.expect("answers as simple-gpt2 has them", f"{len(requests)}", equal, equal == len(requests), TEXTS)
    ids = [tokenizer.encode(prompt).ids for prompt in prompts]
    want = [max((shared(own, other) for other in ids[:at]), default=0) for at, own in enumerate(ids)]
    computed = [step.tokens[0] for step in steps if "p" in step.phase]
    cached = [len(own) - tokens for own, tokens in zip(ids, computed, strict=True)]
    trial.expect("prompt tokens found in the cache", f"{want}", f"{cached}", cached == want, FOUND)


def shared(own, other):
    """Tokens in whole blocks with which both begin, without the last token of the own ones."""
    blocks = 0
    while (blocks + 1) * SIZE < len(own) and own[: (blocks + 1) * SIZE] == other[: (blocks + 1) * SIZE]:
        blocks += 1
    return blocks * SIZE if blocks * SIZE <= len(other) else 0
