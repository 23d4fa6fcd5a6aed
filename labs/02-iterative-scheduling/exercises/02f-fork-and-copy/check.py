"""Random calls to the block manager in a process of its own (those of 02d), then the real server on it."""

from pathlib import Path

PROPERTIES = Path(__file__).parents[1] / "02d-a-block-table" / "properties.py"
MODEL, PLAIN = "iterative-gpt2", "simple-gpt2"
WORDS = ("fox", "river", "baker", "winter", "Seoul", "hammer", "bread", "the", "a", "is", "near", "and", "of", "quiet")
TEXTS = "the server's answers are not the plain ones: it reads and writes keys and values where your tables say."
COPIES = "no block was copied although forks of one prompt went on differently: append returns what to copy."


def check(trial):
    if rules_kept(trial):
        with trial.explain_errors(TEXTS, because=r"table\(|append returned|allocate returned"):
            served(trial)


def rules_kept(trial):
    found = trial.call(str(PROPERTIES), "search", str(trial.folder), trial.rng.randrange(10**6), True, True)
    said = "kept"
    if found:
        said = "\n".join([f"broken, with {found['blocks']} blocks of 2 tokens", *found["calls"]])
    sentence = found["sentence"] if found else ""
    return trial.expect("rules in random calls", "kept", said, found is None, sentence)


def served(trial):
    """Several samples of one prompt at once: they share its blocks until each writes its own tokens."""
    prompt = " ".join(trial.rng.choice(WORDS) for _ in range(trial.rng.randint(17, 30)))
    seeds = trial.rng.sample(range(10**6), 5)
    answers = []
    for model in (MODEL, PLAIN):
        with trial.stream() as stream:
            sent = [stream.send(model, prompt, max_tokens=24, ignore_eos=True, temperature=1.0, seed=n) for n in seeds]
            trial.wait(stream, *sent)
        answers.append([record.text for record in sent])
    copied = sum(step.more["copied"] for step in trial.steps(MODEL))
    equal = sum(one == other for one, other in zip(*answers, strict=True))
    trial.expect("samples as simple-gpt2 has them, together", f"{len(seeds)}", equal, equal == len(seeds), TEXTS)
    trial.expect("blocks copied", "at least 1", copied, copied >= 1, COPIES)
