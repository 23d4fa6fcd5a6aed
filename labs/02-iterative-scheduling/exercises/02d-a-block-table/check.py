"""Random calls to the block manager in a process of its own, then the real server on it.

The server computes keys and values where the tables say, and writes what it counts into the step log.
"""

from pathlib import Path

SIZE = 16
MODEL, PLAIN = "iterative-gpt2", "simple-gpt2"
WORDS = ("fox", "river", "baker", "winter", "Seoul", "hammer", "bread", "the", "a", "is", "near", "and", "of", "quiet")
TEXTS = "the server's answers are not the plain ones: it reads and writes keys and values where your tables say."
USED = "the server's tables hold more or fewer blocks than its sequences need."


def check(trial):
    if rules_kept(trial):
        with trial.explain_errors(TEXTS, because=r"table\(|append returned|allocate returned"):
            served(trial)


def rules_kept(trial):
    found = trial.call(
        str(Path(__file__).with_name("properties.py")),
        "search",
        str(trial.folder),
        trial.rng.randrange(10**6),
        False,
        False,
    )
    said = "kept"
    if found:
        said = "\n".join([f"broken, with {found['blocks']} blocks of 2 tokens", *found["calls"]])
    sentence = found["sentence"] if found else ""
    return trial.expect("rules in random calls", "kept", said, found is None, sentence)


def served(trial):
    """Send one request after the other. Each needs a few blocks; together they need more than there are."""

    def text(words):
        return " ".join(trial.rng.choice(WORDS) for _ in range(words)) + f" {trial.rng.randrange(10**6)}"

    requests = [(text(trial.rng.randint(20, 60)), trial.rng.randint(6, 40)) for _ in range(12)]
    records = [trial.answers(MODEL, [request], ignore_eos=True)[0] for request in requests]
    steps = [step for step in trial.steps(MODEL) if step.batch]
    plain = trial.answers(PLAIN, requests, ignore_eos=True)
    equal = sum(one.text == other.text for one, other in zip(records, plain, strict=True))
    trial.expect("answers as simple-gpt2 has them", f"{len(requests)}", equal, equal == len(requests), TEXTS)
    prompts = [step.tokens[0] for step in steps if "p" in step.phase]
    lengths = [own + made for own, (_, tokens) in zip(prompts, requests, strict=True) for made in range(tokens)]
    need, used = [-(-length // SIZE) for length in lengths], [step.kv_blocks_used for step in steps]
    trial.expect("blocks held, summed over the steps", f"{sum(need):,}", f"{sum(used):,}", used == need, USED)
