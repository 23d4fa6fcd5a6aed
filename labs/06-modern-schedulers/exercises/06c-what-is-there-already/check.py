"""Prompts that share beginnings, and some that share only a middle: the learner's numbers against the server's."""

import random
from itertools import pairwise

BLOCK = 32


def check(trial):
    prompts = prompts_of(trial.rng)
    said = trial.call("scheduler.py", "reused", prompts, BLOCK)
    records, steps = trial.in_turn([(prompt, 2) for prompt in prompts])
    found = [len(prompt) - computed(record.id, steps) for record, prompt in zip(records, prompts, strict=True)]
    whole = isinstance(said, list) and len(said) == len(found) and all(isinstance(n, int) for n in said)
    shown = f"{len(said)} numbers" if whole else str(said)[:60]
    if not trial.expect(
        "reused returns", f"{len(found)} numbers", shown, whole, "reused returns a number for each prompt."
    ):
        return
    at = next((n for n, (mine, number) in enumerate(zip(said, found, strict=True)) if mine != number), -1)
    sentence = "fewer tokens are there than you say: of one prompt you count more than any before it has left."
    if not any(said):
        sentence = "prompts that begin alike share blocks: some of these tokens were not computed again."
    elif said == [number // BLOCK for number in found]:
        sentence = "you count blocks: the check asks for tokens, and a block has `block_size` of them."
    elif any(number % BLOCK for number in said):
        sentence = "you count tokens of a block that is not full: only whole blocks are kept and found again."
    elif said == of_the_last(prompts):
        sentence = "you look at the prompt just before alone: the blocks of every earlier prompt are still there."
    elif said[at] < found[at]:
        sentence = "more tokens are there than you say: which earlier prompts begin as this one does, and how far?"
    elif said[at] <= elsewhere(prompts, at):
        sentence = (
            "you count a block that follows another prefix: its keys and values depend on all that came before it."
        )
    name = f"tokens of prompt {at + 1} that were there already"
    trial.expect(name, f"{found[at]}", f"{said[at]}", said == found, sentence, predicted=True)


def of_the_last(prompts):
    """What is found of each prompt if only the one just before it is there."""
    found = [0]
    for before, prompt in pairwise(prompts):
        ends = range(0, len(prompt) + 1, BLOCK)
        found.append(max(end for end in ends if prompt[:end] == before[:end]))
    return found


def elsewhere(prompts, at):
    """Tokens in blocks of a prompt that earlier ones have as well, whatever comes before them."""
    blocks = [{tuple(prompt[end - BLOCK : end]) for end in range(BLOCK, len(prompt) + 1, BLOCK)} for prompt in prompts]
    return BLOCK * len(blocks[at] & set().union(*blocks[:at]))


def computed(id, steps):
    """Tokens of a prompt that the engine computed."""
    rows = [(step, step.ids.index(id)) for step in steps if id in step.ids]
    return sum(step.tokens[row] for step, row in rows if step.phase[row] == "p")


def prompts_of(rng):
    """Questions behind two instructions, and prompts in which blocks of one follow the first block of the other.

    One of those prompts has the blocks at other places, and two have them where they were. The first of the last three
    prompts continues an earlier one, and none of the three begins like the prompt just before it.
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
    longer, more = [*one[: 2 * BLOCK], *ids(2 * BLOCK)], ids(9)
    first = other[:BLOCK]
    begun, replaced = [*first, *one[BLOCK : 2 * BLOCK], *ids(9)], [*first, *one[BLOCK:], *ids(9)]
    moved = [*first, *one, *ids(9)]
    prompts += [[*longer, *ids(9)], moved, begun, replaced]
    return [*prompts, [*longer, *more], [*other, *ids(9)], [*one, *ids(9)]]
