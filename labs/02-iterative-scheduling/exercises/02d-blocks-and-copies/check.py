"""Random calls to the block manager in a process of its own, then the real server on it.

The server computes keys and values where the tables say, and writes what it counts into the step log.
"""

import random
from pathlib import Path

from tokenizers import Tokenizer

MODEL, PLAIN = "iterative-gpt2", "simple-gpt2"
SIZE = 16
WORDS = ("fox", "river", "baker", "winter", "Seoul", "hammer", "bread", "the", "a", "is", "near", "and", "of", "quiet")
TEXTS = "the server's answers are not the plain ones: it reads and writes keys and values where your tables say."
FOUND = "the server computed prompt tokens that are in the cache, or found others: allocate says how many are found."
USED = "the server's tables hold more or fewer blocks than its sequences need."
COPIES = "no block was copied although forks of one prompt went on differently: append returns what to copy."


def check(trial):
    for forks, name in ((False, "allocate, append, free"), (True, "with fork")):
        seed = trial.rng.randrange(10**6)
        found = trial.call(str(Path(__file__).with_name("properties.py")), "search", str(trial.folder), seed, forks)
        said = "kept"
        if found:
            said = "\n".join([f"broken, with {found['blocks']} blocks of 2 tokens", *found["calls"]])
        sentence = found["sentence"] if found else ""
        if not trial.expect(f"rules in random calls ({name})", "kept", said, found is None, sentence):
            return
    with trial.explain_errors(TEXTS, because=r"table\(|append returned|allocate returned"):
        in_turn(trial)
        forked(trial)


def in_turn(trial):
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
    plain = trial.answers(PLAIN, requests, ignore_eos=True)
    steps = [step for step in trial.steps(MODEL) if step.batch]
    equal = sum(one.text == other.text for one, other in zip(records, plain, strict=True))
    trial.expect("answers as simple-gpt2 has them, in turn", f"{len(requests)}", equal, equal == len(requests), TEXTS)
    ids = [tokenizer.encode(prompt).ids for prompt in prompts]
    want = [max((shared(own, other) for other in ids[:at]), default=0) for at, own in enumerate(ids)]
    computed = [step.more["tokens"][0] for step in steps if "p" in step.more["phase"]]
    cached = [len(own) - tokens for own, tokens in zip(ids, computed, strict=True)]
    trial.expect("prompt tokens found in the cache", f"{want}", f"{cached}", cached == want, FOUND)
    lengths = [len(own) + made for own, (_, tokens) in zip(ids, requests, strict=True) for made in range(tokens)]
    need = [-(-length // SIZE) for length in lengths]
    used = [step.more["kv_blocks_used"] for step in steps]
    trial.expect("blocks held, summed over the steps", f"{sum(need):,}", f"{sum(used):,}", used == need, USED)


def shared(own, other):
    """Tokens in whole blocks with which both begin, without the last token of the own ones."""
    blocks = 0
    while (blocks + 1) * SIZE < len(own) and own[: (blocks + 1) * SIZE] == other[: (blocks + 1) * SIZE]:
        blocks += 1
    return blocks * SIZE if blocks * SIZE <= len(other) else 0


def forked(trial):
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
