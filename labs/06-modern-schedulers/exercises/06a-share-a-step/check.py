"""The learner's steps against the step log's: short requests that decode, and long prompts behind them."""

from itertools import combinations


def check(trial):
    rng = trial.rng
    budget = int(trial.settings["max_num_tokens"])
    lengths = lengths_of(rng, budget)
    requests = [([rng.randint(5, 2000) for _ in range(prompt)], answer) for prompt, answer in lengths]
    said = trial.call("predict.py", "predict", budget, lengths)
    records, steps = trial.send_queued(requests)
    found = [first_of(record.id, steps) for record in records]
    whole = isinstance(said, list) and len(said) == len(found) and all(isinstance(n, int) for n in said)
    shown = f"{len(said)} step numbers" if whole else str(said)[:60]
    if not trial.expect(
        "predict returns", f"{len(found)} step numbers", shown, whole, "predict returns the number of a step for each."
    ):
        return
    largest = max(sum(step.tokens) for step in steps)
    trial.expect("tokens of the largest step", f"at most {budget}", largest, largest <= budget, "the budget is broken.")
    at = next((n for n, (step, mine) in enumerate(zip(found, said, strict=True)) if step != mine), -1)
    name = f"step of the first token of request {at % len(found) + 1}"
    words = sentence(budget, lengths, found, said, at)
    trial.expect(name, f"{found[at]}", f"{said[at]}", said == found, words, predicted=True)


def first_of(id, steps):
    """The number of the step that made the request's first token."""
    return next(n for n, step in enumerate(steps, 1) if id in step.ids and step.made[step.ids.index(id)])


def sentence(budget, lengths, found, said, at):
    """The rule that was not kept, where the steps are those without it; else what the first difference means."""
    if all(step == 1 for step in said):
        return (
            "the first tokens come later than you say: a step computes no more than its budget, so a long prompt goes "
            "in pieces."
        )
    for without, words in LIKELY.items():
        if said == played(budget, lengths, without):
            return words
    if said[at] > found[at]:
        return "a first token comes earlier than you say: play the rules once for each step up to there."
    return "a first token comes later than you say: play the rules once for each step up to there."


LIKELY = {
    "decode first": "a prompt is not done as early as you say: a request that decodes takes a token of the step's "
    "budget first.",
    "hand on": "a first token comes earlier than you say: what one prompt leaves of a step, the next one takes.",
    "at once": "your steps are one too many: the step that finishes a prompt makes its first token.",
    "from 1": "your steps are one too few: the first step is number 1.",
    "next step": "a request decodes from the step after its first token on: before, it takes no token of a budget.",
    "leave": "a request with all of its answer takes no token of a budget any more.",
    "in order": "the prompts get the rest of a step in order of arrival.",
    "in pieces": "a first token comes earlier than you say: a prompt that does not fit into a step begins in it.",
}


def lengths_of(rng, budget):
    """Lengths for which each rule that is not kept comes to other steps."""
    while True:
        lengths = [(rng.randint(2, 4), rng.randint(4, 32)) for _ in range(3)]
        lengths += [(rng.randint(40, 70), rng.randint(2, 6)) for _ in range(5)]
        steps = [played(budget, lengths, without) for without in ("", *LIKELY)]
        if not any(one == other for one, other in combinations(steps, 2)):
            return lengths


def played(budget, lengths, without=""):
    """The steps of the first tokens by the rules of task.md, ``without`` one of them."""
    left, made = [prompt for prompt, _ in lengths], [0] * len(lengths)
    first, step = [0] * len(lengths), 0
    turns = sorted(range(len(left)), key=lambda n: -n if without == "in order" else n)
    while 0 in first:
        step += 1
        kept = without == "leave"
        decoding = [n for n, (_, answer) in enumerate(lengths) if not left[n] and (kept or made[n] < answer)]
        room = budget - (0 if without == "decode first" else len(decoding))
        for n in turns:
            part = min(left[n], max(room, 0))
            if without == "in pieces" and part < left[n] and left[n] <= budget:
                part = 0
            room -= part
            if without == "hand on" and part and lengths[n][0] > budget:
                room = 0
            left[n] -= part
            if part and not left[n]:
                first[n], made[n] = step + (without == "at once"), 1
                room -= without == "next step"
        for n in decoding:
            made[n] += 1
    return [step - 1 for step in first] if without == "from 1" else first
