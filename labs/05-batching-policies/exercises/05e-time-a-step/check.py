"""Times of steps that were not recorded, by the learner's model, against the noise floor.

The steps are the server's. Their times are made, because a busy machine would decide the exercise otherwise: four costs
that the seed hides, and noise with a floor of 3 %, so that a bias of 2 % is seen (a recorded run of 2,510 steps on a
busy machine: 10.8 %).
"""

import numpy as np

SIGMA = 0.03 / 0.6745  # of the noise's logarithm
# Least squares of relative errors, as the guide has it, are low by 1.5 times the noise's variance, 0.3 %: right too.
MOST = 1.25  # times the noise floor
OFF = 0.0125  # of the time of a quarter of the steps
ALIKE, MOST_DRAWS = 24, 30  # steps that are most alike; draws, because the shapes are the server's
TIMES = 16  # the same requests were recorded
LIKE = ("decoding", "prompt_tokens", "context")
KINDS = {
    "small steps": "small steps take longer than you say: a step costs something whatever is in it.",
    "decoding": "steps that mostly decode take longer than you say: each decoding request costs something.",
    "prompts": "steps with prompts take longer than you say: each of their tokens costs something.",
    "contexts": "steps with long contexts take longer than you say: keys and values of all tokens are read.",
}
SAME = "one time for every step: which steps take longer than others?"
EQUAL = "a decoding request costs more than a token of a prompt: each needs a cost of its own."
WIDE = "single steps are further from your times than the noise explains: do your costs fit all recorded steps best?"
NOISY = "your times repeat the noise of single recorded steps: let all steps decide each cost."
SHAPE = "predict returns a list of numbers, the milliseconds of each step of `steps`."


def check(trial):
    rng = trial.rng
    first, second = shapes_of(trial, rng.randint(4, 6)), shapes_of(trial, rng.randint(4, 6))
    steps = np.array([shape for shape in second if all(np.array(shape) <= np.max(first, axis=0))])
    recorded = np.array(first * TIMES)
    costs, truth = costs_of(rng, recorded, steps)
    noise = np.random.default_rng(rng.getrandbits(32))
    taken, times = ((x @ costs) * np.exp(SIGMA * noise.standard_normal(len(x))) for x in (recorded, steps))
    known = [{**named(shape), "ms": float(ms)} for shape, ms in zip(recorded, taken, strict=True)]
    said = trial.call("predict.py", "predict", known, [named(shape) for shape in steps])
    numbers = isinstance(said, list) and len(said) == len(steps) and all(isinstance(ms, int | float) for ms in said)
    if not trial.expect(
        "predict returns",
        f"{len(steps)} numbers",
        f"{len(said)} numbers" if numbers else str(said)[:60],
        numbers,
        SHAPE,
    ):
        return
    said = np.array(said, dtype=float)
    varied = float(np.ptp(said))
    if not trial.expect("between the shortest and the longest", "some ms", f"{varied:.0f} ms", varied > 1, SAME):
        return
    own = len(set(said) & set(taken))
    trial.expect("times that one recorded step took", "at most 10", own, own <= 10, NOISY)
    off = {kind: apart(steps * costs, at, said, truth) for at, kind in enumerate(KINDS)}
    trial.expect(
        "a quarter of the steps: " + ", ".join(off),
        f"within {OFF:.2%}",
        ", ".join(f"{share:+.1%}" for share in off.values()),
        max(map(abs, off.values())) <= OFF,
        missing(steps, said, costs),
    )
    floor, error = (float(np.median(np.abs(ms / times - 1))) for ms in (truth, said))
    expected = f"at most {MOST * floor:.1%} ({MOST} times the noise floor)"
    trial.expect("median error of a step", expected, f"{error:.1%}", error <= MOST * floor, WIDE)


def costs_of(rng, recorded, steps):
    """Costs for which the mean of the steps that are most alike is further off than an answer may be."""
    alike = [np.argsort(np.abs(recorded - step) @ [0, 20, 2, 0.1])[:ALIKE] for step in steps]
    for _ in range(MOST_DRAWS):
        costs = np.array([rng.uniform(15, 25), rng.uniform(3, 5), rng.uniform(0.3, 0.6), rng.uniform(0.02, 0.03)])
        truth, means = steps @ costs, (recorded @ costs)[alike].mean(axis=1)
        if max(abs(apart(steps * costs, at, means, truth)) for at in range(len(KINDS))) > 2 * OFF:
            break
    return costs, truth


def apart(parts, at, said, truth):
    """The error of the learner's times, over the steps in which cost number ``at`` is the largest part."""
    share = parts[:, at] / truth
    most = share >= np.quantile(share, 0.75)
    return float(said[most].sum() / truth[most].sum() - 1)


def missing(steps, said, costs):
    """The learner's times taken apart into the four costs: which of them is the furthest below the true one."""
    found, *_ = np.linalg.lstsq(steps.astype(float), said, rcond=None)
    if 0 < found[1] < 2 * found[2]:
        return EQUAL
    return list(KINDS.values())[int(np.argmin(found / costs))]


def shapes_of(trial, gap):
    """The shapes of the server's steps for random requests: 1, decoding requests, prompt tokens, context tokens."""
    rng = trial.rng
    kinds = [(rng.randint(8, 30), rng.randint(10, 60)) for _ in range(20)]
    kinds += [(rng.randint(250, 400), rng.randint(20, 60)) for _ in range(8)]
    drawn = [([rng.randint(5, 2000) for _ in range(prompt)], answer) for prompt, answer in rng.sample(kinds, 28)]
    records, steps = trial.send_queued(drawn[:1], [(gap * n, request) for n, request in enumerate(drawn[1:], 1)])
    known = {record.id: 0 for record in records}
    found = []
    for step in steps:
        phase, tokens = step.phase, step.tokens
        for id, count in zip(step.ids, tokens, strict=True):
            known[id] += count
        prompts = sum(count for letter, count in zip(phase, tokens, strict=True) if letter == "p")
        found.append((1, phase.count("d"), prompts, sum(known[id] for id in step.ids)))
    return found


def named(shape):
    return dict(zip(LIKE, map(int, shape[1:]), strict=True))
