"""Two tenants, one with a flood: while both wait, both are served alike; and nobody saves up what it did not use."""

LONG, SHORT, PROMPT = 48, 16, 16


def check(trial):
    flood, light = (f"{name}-{trial.rng.randrange(10**9)}" for name in ("flood", "light"))
    requests = [ask(trial, flood, LONG) for _ in range(20)] + [ask(trial, light, SHORT) for _ in range(12)]
    behind = furthest_apart(trial, requests, flood, light)[-1]
    trial.expect(
        "requests by which the second tenant is behind its share",
        "at most 1",
        f"{behind:.1f}",
        behind <= 1,
        "both tenants get as many requests, not as many tokens: whoever asks for long answers gets more."
        if behind < 5
        else "the flood goes first, and the other tenant gets what is left: first come, first served knows no tenants.",
    )
    busy, away = (f"{name}-{trial.rng.randrange(10**9)}" for name in ("busy", "away"))
    trial.queued([ask(trial, away, SHORT)])
    trial.queued([ask(trial, busy, LONG) for _ in range(8)])  # while the other one is away
    back = [ask(trial, busy, LONG) for _ in range(10)] + [ask(trial, away, SHORT) for _ in range(24)]
    ahead = abs(min(furthest_apart(trial, back, busy, away)))  # it is never above 0
    trial.expect(
        "requests by which whoever was away gets ahead of its share",
        "at most 1",
        f"{ahead:.1f}",
        ahead <= 1,
        "a tenant that comes back after a pause is served alone until it has caught up: what was not used is not saved "
        "up.",
    )


def ask(trial, tenant, tokens):
    return [trial.rng.randint(5, 2000) for _ in range(PROMPT)], tokens, {"tenant": tenant}


def furthest_apart(trial, requests, one, other):
    """How far the second tenant was behind its half, after each step while both waited; in requests of the first."""
    records, steps = trial.queued(requests)
    tenants = {record.id: more["tenant"] for record, (_, _, more) in zip(records, requests, strict=True)}
    served, apart = {one: 0, other: 0}, [0.0]
    for step in steps:
        if {tenants[id] for id in step.more.get("waiting", ()) if id in tenants} != {one, other}:
            break
        for id, letter, computed, made in zip(
            step.ids, step.more["phase"], step.more["tokens"], step.more["made"], strict=True
        ):
            served[tenants[id]] += (computed if letter == "p" else 0) + 2 * made
        apart.append((served[one] - served[other]) / 2 / (PROMPT + 2 * LONG))
    return apart
