"""Sixteen users ask at once, four times: how large are the batches by the counters?"""

from collections import Counter

MODEL = "codegen-350M-mono-gptj"
PROMPTS = ("def add(a, b):", "def is_prime(n):", "def count_vowels(text):", "def double(n):", "def largest(items):")
USERS, ROUNDS = 16, 4
MOST_DELAY_US = 100_000

ONE_BY_ONE = "the requests were handed over one by one: is `dynamic_batching` in config.pbtxt?"
INSTANCES = (
    "each instance still gets its requests one by one, and each holds the model in memory again: "
    "batching is one block, `dynamic_batching`."
)
SMALL = "batches form, but small ones: what keeps them small, preferred_batch_size or max_batch_size?"
DELAYED = (
    "the model is free, and the requests wait all the same: `max_queue_delay_microseconds` holds them back for longer "
    "than a batch takes. The requests that are there when the model becomes free are a batch; an empty block is enough."
)


def check(trial):
    requests = [[(trial.rng.choice(PROMPTS), trial.rng.randint(20, 28)) for _ in range(USERS)] for _ in range(ROUNDS)]
    before = trial.counters()
    records = [record for asked in requests for record in trial.gathered("ensemble", asked, MODEL)]
    wanted = before.models[MODEL].inferences + len(records)
    counted = trial.wait_for(trial.counters, lambda now: now.models[MODEL].inferences >= wanted).since(before)
    mean = counted.models[MODEL].mean_batch
    instances = len({step.instance for step in trial.steps(MODEL)})
    said = SMALL if mean >= 1.2 else INSTANCES if instances > 1 else ONE_BY_ONE
    trial.expect("mean batch (inference_count / exec_count)", "above 4", f"{mean:.1f}", mean > 4, said)
    batcher = trial.config(MODEL).get("dynamic_batching", {})
    delay = int(batcher.get("max_queue_delay_microseconds", 0))
    title = "microseconds that a request is held back for others"
    trial.expect(title, f"at most {MOST_DELAY_US:,}", f"{delay:,}", delay <= MOST_DELAY_US, DELAYED)
    answers = Counter(record.prompt for record in records if record.ok)
    trial.expect(
        "requests answered",
        ROUNDS * USERS,
        answers.total(),
        answers.total() == ROUNDS * USERS,
        "a request was not answered: what turned it away?",
    )
