"""The learner's prediction against the step log, under both policies."""

from itertools import combinations

MODEL, BLOCKS, BLOCK_SIZE = "tensorrt_llm", 8, 32
POLICY, NO_EVICT, UTILIZATION = "batch_scheduler_policy", "guaranteed_no_evict", "max_utilization"
LONGEST = 5000  # steps; some mistakes go on for ever
OTHER = "the preemptions are not those of the server: play rules 1 to 3 once for each step, in their order."
MEAN = "the preemptions are right, the mean batch is not: play rules 1 to 3 once for each step, in their order."
LIKELY = {
    "spare": "rule 2: beside what all need, one block for each running request must stay free when a request joins.",
    "next token": "rule 2: a request needs the blocks for its tokens and its next one; you count the tokens alone.",
    "keeps": "rule 1: a preempted request keeps the tokens that it has, and yours starts over.",
    "head": "rule 1: a preempted request goes to the head of the queue, and yours to its end.",
    "last": "rule 1: the last of the running requests is preempted, and you take the first.",
}


def check(trial):
    lengths = lengths_of(trial.rng)
    requests = [([trial.rng.randint(5, 2000) for _ in range(prompt)], answer) for prompt, answer in lengths]
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
        "predict returns two numbers: the mean batch and the preemptions.",
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
        f"preemptions, {NO_EVICT}",
        predicted[NO_EVICT][1],
        0,
        "guaranteed_no_evict never preempts a request: that is what it guarantees.",
    )
    mean, preemptions = figures[UTILIZATION]
    preempts = trial.expect(
        f"preemptions, {UTILIZATION}",
        "some",
        predicted[UTILIZATION][1],
        predicted[UTILIZATION][1] > 0,
        "max_utilization preempts in this cache, but you predict that it does not: under it a request joins with the "
        "blocks of its prompt alone.",
    )
    if not preempts:
        return
    mistake = likely(lengths, *predicted[UTILIZATION])
    name = f"preemptions, {UTILIZATION}"
    if compare(trial, name, predicted[UTILIZATION][1], preemptions, mistake or OTHER):
        compare(trial, f"mean batch, {UTILIZATION}", predicted[UTILIZATION][0], mean, mistake or MEAN)


def lengths_of(rng):
    """Prompts and answers on which each likely mistake comes to other numbers than the rules."""
    while True:
        lengths = [(rng.randint(20, 31), rng.randint(40, 80)) for _ in range(12)]
        figures = [played(lengths, without) for without in ("", *LIKELY)]
        if not any(a[1] == b[1] and same(a[0], b[0]) for a, b in combinations(figures, 2)):
            return lengths


def likely(lengths, mean, preemptions):
    """The sentence of the mistake that comes to the same numbers; "" if none does."""
    for without, sentence in LIKELY.items():
        other, count = played(lengths, without)
        if count == preemptions and same(other, mean):
            return sentence
    return ""


def played(lengths, without):
    """Mean batch and preemptions under max_utilization, by the rules of task.md ``without`` one of them."""
    queue = [[prompt, answer, 0] for prompt, answer in lengths]
    running, batches, preemptions = [], [], 0

    def blocks():
        return sum(blocks_of(request) for request in running)

    def blocks_of(request):
        return -(-(request[0] + request[2] + (without != "next token")) // BLOCK_SIZE)

    while queue or running:
        preempted = 0
        while blocks() > BLOCKS and len(running) > 1:
            request = running.pop(0 if without == "last" else -1)
            request[2] *= without != "keeps"
            queue.insert(len(queue) if without == "head" else 0, request)
            preempted += 1
        preemptions += preempted
        while queue and not preempted:
            spare = 0 if without == "spare" else len(running)
            if blocks() + blocks_of(queue[0]) + spare > BLOCKS:
                break
            running.append(queue.pop(0))
        batches.append(len(running))
        for request in running:
            request[2] += 1
        running = [request for request in running if request[2] < request[1]]
        if len(batches) > LONGEST:
            break
    return sum(batches) / len(batches), preemptions


def measured(trial, requests):
    """Mean batch and preemptions of the server under each policy: the one that it has now, then the other."""
    figures = {}
    for policy in sorted((NO_EVICT, UTILIZATION), key=lambda policy: policy != trial.parameters(MODEL)[POLICY]):
        if policy != trial.parameters(MODEL)[POLICY]:
            trial.load_with(MODEL, **{POLICY: policy, f"asked_{POLICY}": policy})
        steps = trial.send_queued(requests)[1]
        figures[policy] = sum(step.batch for step in steps) / len(steps), sum(s.more["preempted"] for s in steps)
    return figures


def compare(trial, name, predicted, measured, sentence):
    return trial.expect(
        name, f"{measured:.2f} (measured)", f"{predicted:.2f} (yours)", same(predicted, measured), sentence
    )


def same(one, other):
    return abs(one - other) < 0.01
