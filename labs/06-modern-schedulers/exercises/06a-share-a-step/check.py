"""The learner's shares of a load's steps, and the same steps in the server's log."""

from typing import NamedTuple

from labkit.evidence import bounds

NO_LIST = "share returns a number of tokens for each prompt."
OTHER = "play the rules for this step: who gets how much of the budget?"


class Moment(NamedTuple):
    """What `share` is asked before a step."""

    budget: int
    decoding: int
    left: list[int]


def check(trial):
    rng = trial.rng
    budget = int(trial.settings["max_num_tokens"])
    lengths = lengths_of(rng, budget)
    moments = [*moments_of(budget, lengths), *edges(rng, budget)]
    expected = [shared(moment) for moment in moments]
    said = trial.call(bounds.__file__, "shares", str(trial.folder), moments)
    if isinstance(said, dict):
        trial.expect("share", "a list", said["error"], False, f"{said['error']}.")
        return
    whole = all(is_a_list(mine, moment.left) for mine, moment in zip(said, moments, strict=True))
    if not trial.expect("share returns", "a number for each prompt", "yes" if whole else "no", whole, NO_LIST):
        return
    at = next((n for n, (mine, right) in enumerate(zip(said, expected, strict=True)) if mine != right), 0)
    words = in_words(moments[at])
    mine, right = f"{in_row(said[at])} (yours)", said == expected
    if not trial.expect(words, in_row(expected[at]), mine, right, sentence(moments, said)):
        return
    requests = [([rng.randint(5, 2000) for _ in range(prompt)], answer) for prompt, answer in lengths]
    _, steps = trial.send_queued(requests)
    largest = max(sum(step.tokens) for step in steps)
    trial.expect("tokens of the largest step", f"at most {budget}", largest, largest <= budget, "the budget is broken.")
    served = [parts for parts in map(prompt_tokens, steps) if parts]
    foreseen = said[: -len(edges(rng, budget))]
    shown = sum(one == other for one, other in zip(served, foreseen, strict=False))
    alike = served == foreseen
    trial.expect("steps that share as you say", f"{len(foreseen)}", shown, alike, "the server shared otherwise.")


def prompt_tokens(step):
    return [tokens for letter, tokens in zip(step.phase, step.tokens, strict=True) if letter == "p"]


def is_a_list(mine, left):
    return isinstance(mine, list) and len(mine) == len(left) and all(isinstance(part, int) for part in mine)


def in_words(moment):
    left = " and ".join(map(str, moment.left))
    return f"{moment.budget} tokens, {moment.decoding} requests decode, prompts need {left}"


def in_row(parts):
    return ", ".join(map(str, parts))


def shared(moment, without=""):
    """The shares by the rules of task.md, ``without`` one of them."""
    budget, decoding, left = moment
    rest, parts = budget - (0 if without == "decode first" else decoding), [0] * len(left)
    order = range(len(left))
    if without in ("in order", "shortest"):
        order = sorted(order, key=lambda n: -n if without == "in order" else left[n])
    for n in order:
        parts[n] = min(left[n], max(rest, 0))
        if without == "in pieces" and parts[n] < left[n] <= budget:
            parts[n] = 0
        rest = 0 if without == "hand on" and parts[n] else rest - parts[n]
    return parts


# Without each of the rules, what is wrong.
LIKELY = {
    "decode first": "a request that decodes takes a token of the step's budget first.",
    "hand on": "what one prompt leaves of a step, the next one takes.",
    "in order": "the prompts get the rest of a step in order of arrival.",
    "shortest": "the prompts get the rest of a step in order of arrival.",
    "in pieces": "a prompt that does not fit into a step begins in it, and continues in the next one.",
}


def sentence(moments, said):
    """The rule that was not kept, where the shares are those without it."""
    if any(sum(mine) > moment.budget for mine, moment in zip(said, moments, strict=True)):
        return "a step computes no more than its budget: a prompt that is longer goes in pieces."
    for without, words in LIKELY.items():
        if said == [shared(moment, without) for moment in moments]:
            return words
    return OTHER


def lengths_of(rng, budget):
    """Lengths for whose steps each rule that is not kept comes to other shares."""
    while True:
        lengths = [(rng.randint(2, 4), rng.randint(4, 32)) for _ in range(3)]
        lengths += [(rng.randint(10, 70), rng.randint(2, 6)) for _ in range(5)]
        moments = moments_of(budget, lengths)
        kept = [shared(moment) for moment in moments]
        if all(kept != [shared(moment, without) for moment in moments] for without in LIKELY):
            return lengths


def edges(rng, budget):
    """Moments with few tokens left, and none."""
    return [Moment(budget, budget - rest, [rng.randint(10, 70), rng.randint(1, 9)]) for rest in range(4)]


def moments_of(budget, lengths):
    """What `share` is asked, step by step, as long as there are prompts, if the rules are kept."""
    left, made = [prompt for prompt, _ in lengths], [0] * len(lengths)
    moments = []
    while any(left):
        unfinished = [n for n, tokens in enumerate(left) if tokens]
        decoding = [n for n, (_, answer) in enumerate(lengths) if not left[n] and made[n] < answer]
        moments.append(Moment(budget, len(decoding), [left[n] for n in unfinished]))
        for n, part in zip(unfinished, shared(moments[-1]), strict=True):
            left[n] -= part
            made[n] += part > 0 and not left[n]
        for n in decoding:
            made[n] += 1
    return moments
