"""Prompts that share beginnings, and one that shares only its middle: the learner's numbers against the server's."""

import random

BLOCK = 32


def check(trial):
    prompts = prompts_of(trial.rng)
    said = trial.call("predict.py", "reused", prompts, BLOCK)
    records, steps = trial.in_turn([(prompt, 2) for prompt in prompts])
    found = [len(prompt) - computed(record.id, steps) for record, prompt in zip(records, prompts, strict=True)]
    whole = isinstance(said, list) and len(said) == len(found) and all(isinstance(n, int) for n in said)
    if not trial.expect(
        "reused returns", f"{len(found)} numbers", said, whole, "reused returns a number for each prompt."
    ):
        return
    sentence = "the tokens that were there already are others: go through each prompt block by block."
    if not any(said):
        sentence = "prompts that begin alike share blocks: some of these tokens were not computed again."
    elif said == [number // BLOCK for number in found]:
        sentence = "you count blocks: the check asks for tokens, and a block has `block_size` of them."
    elif any(number % BLOCK for number in said):
        sentence = "you count tokens of a block that is not full: only whole blocks are kept and found again."
    elif any(mine > number for mine, number in zip(said, found, strict=True)):
        sentence = (
            "you count a block that follows another prefix: its keys and values depend on all that came before it."
        )
    trial.expect("tokens that were there already", f"{found} (measured)", f"{said} (yours)", said == found, sentence)


def computed(id, steps):
    """Tokens of a prompt that the engine computed."""
    rows = [(step, step.ids.index(id)) for step in steps if id in step.ids]
    return sum(step.more["tokens"][row] for step, row in rows if step.more["phase"][row] == "p")


def prompts_of(rng):
    """Four questions behind one instruction, two behind another, and one with the first instruction in its middle.

    The seed decides lengths and order. The ids are new every time, because the server's cache outlives a check.
    """
    new = random.SystemRandom()

    def ids(count):
        return [new.randint(5, 2000) for _ in range(count)]

    one, other = ids(BLOCK * rng.randint(3, 5) + rng.randint(5, 27)), ids(BLOCK * 2 + rng.randint(5, 27))
    prompts = [[*one, *ids(rng.randint(6, 40))] for _ in range(4)] + [
        [*other, *ids(rng.randint(6, 40))] for _ in range(2)
    ]
    rng.shuffle(prompts)
    return [*prompts, [*ids(BLOCK), *one, *ids(9)]]
