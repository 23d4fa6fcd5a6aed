"""The learner's steps against the step log's: short requests that decode, and long prompts behind them."""


def check(trial):
    rng = trial.rng
    lengths = [(rng.randint(2, 4), rng.randint(24, 32)) for _ in range(3)]
    lengths += [(rng.randint(40, 70), 4) for _ in range(5)]
    requests = [([rng.randint(5, 2000) for _ in range(prompt)], answer) for prompt, answer in lengths]
    budget = int(trial.settings["max_num_tokens"])
    said = trial.call("predict.py", "predict", budget, lengths)
    records, steps = trial.send_queued(requests)
    found = [first_of(record.id, steps) for record in records]
    whole = isinstance(said, list) and len(said) == len(found) and all(isinstance(n, int) for n in said)
    if not trial.expect(
        "predict returns", f"{len(found)} step numbers", said, whole, "predict returns the number of a step for each."
    ):
        return
    largest = max(sum(step.more["tokens"]) for step in steps)
    trial.expect("tokens of the largest step", f"at most {budget}", largest, largest <= budget, "the budget is broken.")
    differ = [n for n, (step, mine) in enumerate(zip(found, said, strict=True)) if step != mine]
    trial.expect(
        "steps of the first tokens",
        f"{found} (measured)",
        f"{said} (yours)",
        not differ,
        sentence(found, said, differ[0]) if differ else "",
    )


def first_of(id, steps):
    """The number of the step that made the request's first token."""
    return next(n for n, step in enumerate(steps, 1) if id in step.ids and step.more["made"][step.ids.index(id)])


def sentence(found, said, at):
    """What the first difference means."""
    if all(step == 1 for step in said):
        return (
            "the first tokens come later than you say: a step computes no more than its budget, so a long prompt goes "
            "in pieces."
        )
    if said[at] > found[at]:
        return "a first token comes earlier than you say: what one prompt leaves of a step, the next one takes."
    return "a prompt is not done as early as you say: a request that decodes takes a token of the step's budget first."
