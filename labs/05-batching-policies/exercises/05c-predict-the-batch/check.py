"""The learner's prediction against the step log, under both policies."""

MODEL, BLOCKS, BLOCK_SIZE = "tensorrt_llm", 8, 32
POLICY, NO_EVICT, UTILIZATION = "batch_scheduler_policy", "guaranteed_no_evict", "max_utilization"


def check(trial):
    requests = [
        ([trial.rng.randint(5, 2000) for _ in range(trial.rng.randint(20, 31))], trial.rng.randint(40, 80))
        for _ in range(12)
    ]
    lengths = [(len(prompt), limit) for prompt, limit in requests]
    predicted = {
        p: trial.call("predict.py", "predict", BLOCKS, BLOCK_SIZE, lengths, p) for p in (NO_EVICT, UTILIZATION)
    }
    numbers = all(
        isinstance(p, list) and len(p) == 2 and all(isinstance(n, int | float) for n in p) for p in predicted.values()
    )
    trial.expect(
        "predict returns",
        "two numbers",
        predicted[NO_EVICT],
        numbers,
        "predict returns two numbers: the mean batch and the evictions.",
    )
    if not numbers:
        return
    figures = measured(trial, requests)
    compare(
        trial,
        f"mean batch, {NO_EVICT}",
        predicted[NO_EVICT][0],
        figures[NO_EVICT][0],
        "guaranteed_no_evict runs another batch: a request joins when the blocks of its whole prompt and output are "
        "not promised to others yet.",
    )
    compare(
        trial,
        f"evictions, {NO_EVICT}",
        predicted[NO_EVICT][1],
        0,
        "guaranteed_no_evict never evicts a request: that is what it guarantees.",
    )
    mean, evictions = figures[UTILIZATION]
    evicts = trial.expect(
        f"evictions, {UTILIZATION}",
        "some",
        predicted[UTILIZATION][1],
        predicted[UTILIZATION][1] > 0,
        "max_utilization evicts in this cache, and you predict that it does not: under it a request joins with the "
        "blocks of its prompt alone.",
    )
    if not evicts:
        return
    compare(
        trial,
        f"evictions, {UTILIZATION}",
        predicted[UTILIZATION][1],
        evictions,
        "the evictions are not those of the server: a new request leaves one block free for each running request, and "
        "the last one admitted is evicted.",
    )
    compare(
        trial,
        f"mean batch, {UTILIZATION}",
        predicted[UTILIZATION][0],
        mean,
        "the evictions are right, the mean batch is not: an evicted request keeps its tokens, and no request joins in "
        "the step of an eviction.",
    )


def measured(trial, requests):
    """Mean batch and evictions of the server under each policy: the one that it has now, then the other."""
    figures = {}
    for policy in sorted((NO_EVICT, UTILIZATION), key=lambda policy: policy != trial.parameters(MODEL)[POLICY]):
        if policy != trial.parameters(MODEL)[POLICY]:
            trial.load_with(MODEL, **{POLICY: policy, f"asked_{POLICY}": policy})
        steps = trial.send_queued(requests)[1]
        figures[policy] = sum(step.batch for step in steps) / len(steps), sum(s.more["preempted"] for s in steps)
    return figures


def compare(trial, name, predicted, measured, sentence):
    trial.expect(
        name, f"{measured:.2f} (measured)", f"{predicted:.2f} (yours)", abs(predicted - measured) < 0.01, sentence
    )
