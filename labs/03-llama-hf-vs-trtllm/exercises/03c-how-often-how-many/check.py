"""What the learner predicts for prompts and lengths of this seed, and what the server does afterwards."""

import heapq
from collections import Counter

PROMPTS = ("I am going to", "The fox", "My favourite food is", "In the middle of the night", "Anna", "The best thing")
OTHERS = 6  # loads that are not served: other lengths and limits
SINGLE, BATCHED, ENGINE = "llama-python", "llama-python-batched", "tensorrt_llm"

SENTENCES = {
    SINGLE: "llama-python has no batch dimension: every request is an execution of its own, with one row.",
    BATCHED: "llama-python-batched takes at most `limit` rows at a time, and the rest afterwards.",
    ENGINE: "in the engine a request that has all its tokens leaves at once, "
    "and one that waits takes its place in the next step.",
}


def check(trial):
    limit = int(trial.settings["hf_batch_size"])
    count = limit + trial.rng.randint(2, 7)
    lengths = trial.rng.sample(range(3, 20), count)
    requests = [(trial.rng.choice(PROMPTS), tokens) for tokens in lengths]
    said = trial.call("predict.py", "predict", [prompt for prompt, _ in requests], lengths, limit)
    measured, seconds = {}, {}
    for model, asked in ((SINGLE, SINGLE), (BATCHED, BATCHED), (ENGINE, "ensemble")):
        before = trial.counters()
        if model == ENGINE:
            trial.all_there(requests, asked)
        else:
            trial.at_once(asked, requests)
        # The engine sends an answer's last token before it writes the step down.
        rows = sum(lengths) if model == ENGINE else count
        steps = trial.wait_for(
            lambda m=model: trial.steps(m), lambda now, n=rows: sum(step.batch for step in now) >= n, seconds=10
        )
        measured[model] = [step.batch for step in steps]
        seconds[model] = sum(step.over - step.began for step in steps)
        if model != ENGINE:
            wanted = before.models[model].inferences + count
            now = trial.wait_for(trial.counters, lambda now, m=model, n=wanted: now.models[m].inferences >= n)
            executions = now.since(before).models[model].exec_count
            trial.expect(
                f"{model}: executions by Triton's counter",
                len(measured[model]),
                f"{executions:.0f}",
                executions == len(measured[model]),
                "Triton and the step log count differently: did another client use this server?",
            )
    for model, rows in measured.items():
        guess = said.get(model) if isinstance(said, dict) else None
        trial.expect(
            f"{model}: rows of each execution",
            shown(rows),
            shown(guess),
            guess == rows,
            SENTENCES[model],
            predicted=True,
        )
    elsewhere(trial)
    whole = " : ".join(f"{seconds[model] / seconds[SINGLE]:.2f}" for model in measured)
    trial.expect("time in the three models (not judged)", "-", whole, True, "")


def elsewhere(trial):
    """The learner's predictions for other limits than the server's, and other loads."""
    loads = [drawn(trial.rng) for _ in range(OTHERS)]
    said = [trial.call("predict.py", "predict", *load) for load in loads]
    for model, sentence in SENTENCES.items():
        right = sum(
            isinstance(one, dict) and one.get(model) == counted(lengths, limit)[model]
            for one, (_, lengths, limit) in zip(said, loads, strict=True)
        )
        trial.expect(f"{model}: other loads and limits", f"{OTHERS}", right, right == OTHERS, sentence)


def drawn(rng):
    """Prompts, the lengths of their answers, and the most rows of an execution."""
    limit = rng.randint(2, 6)
    lengths = [rng.randint(1, 20) for _ in range(rng.randint(limit + 1, 3 * limit))]
    return [rng.choice(PROMPTS) for _ in lengths], lengths, limit


def counted(lengths, limit):
    """The rows of each execution, by model."""
    count, free, rows = len(lengths), [0] * limit, Counter()
    for length in lengths:  # each in the slot that is free first
        begin = free[0]
        heapq.heapreplace(free, begin + length)
        rows.update(range(begin, begin + length))
    batches = [min(limit, count - first) for first in range(0, count, limit)]
    return {SINGLE: [1] * count, BATCHED: batches, ENGINE: [rows[step] for step in sorted(rows)]}


def shown(rows):
    return " ".join(map(str, rows)) if isinstance(rows, list) else str(rows)
