"""More work at once than a queue of 0.5 s may hold: requests are rejected, by the rule that the task asks for.

How long a request may wait is read from the configuration that the server has, and not from a clock.
"""

MODEL = "codegen-350M-mono-gptj"
PROMPTS = ("def add(a, b):", "def is_prime(n):", "def count_vowels(text):", "def double(n):", "def largest(items):")
LIMIT_US = 500_000
ENOUGH_MS = 1000  # requests that waited so long for the model, on average, show that none will be rejected
FIRST, MOST = 60, 1920  # requests

ENDLESS = (
    "no request was rejected, so the queue grew with the load: "
    "does it have a time-out, and an action for requests that exceed it?"
)
TOO_SOON = (
    "a request was rejected before 500 ms had passed: the time-out is in microseconds, and 500 ms are 500000 of them."
)
TOO_LATE = "a request may wait for longer than 500 ms before it is rejected: the time-out is 500000 microseconds."
FULL = (
    "max_queue_size rejects a request because the queue is full, however short it has waited: "
    "what counts is how long it has waited."
)
DELAYED = "no request was rejected: DELAY puts a request whose time is over behind the others, and still computes it."


def check(trial):
    tokens = trial.rng.randint(8, 12)
    before = trial.counters()
    count = FIRST
    while True:  # until a request is rejected, or there was so much work that one should have been
        begun, records = trial.counters(), overload(trial, count, tokens)
        refused, served = [r for r in records if r.error], [r for r in records if r.ok]
        if refused or count >= MOST or trial.counters().since(begun).models[MODEL].queue_ms > ENOUGH_MS:
            break
        count *= 2
    policies = queue_policies(trial.config(MODEL))
    delayed = any(policy.get("timeout_action") == "DELAY" for policy in policies)
    limits = sorted({int(policy.get("default_timeout_microseconds", 0)) for policy in policies})
    late = bool(limits) and limits[-1] > LIMIT_US
    if not refused and not delayed and limits == [LIMIT_US]:  # on a busy machine requests wait before they come there
        raise trial.TooBusy("no request waited for the model for 500 ms")
    said = DELAYED if delayed else TOO_LATE if late else ENDLESS
    trial.expect("rejected", "at least 1", f"{len(refused)} of {count}", bool(refused), said)
    longest = max((int(policy.get("max_queue_size", 0)) for policy in policies), default=0)
    if not trial.expect("limit of the queue's length", "none", longest or "none", not longest, FULL):
        return
    if refused:  # measured at the client: never shorter than the time in the queue
        soonest = 1e6 * min(r.end - r.start for r in refused)
        measured = f"{soonest:,.0f} us"
        trial.expect("first rejection after", "at least 500,000 us", measured, soonest >= LIMIT_US, TOO_SOON)
    trial.expect(
        "time-out",
        "500,000 us",
        " and ".join(f"{limit:,} us" for limit in limits) or "none",
        limits == [LIMIT_US],
        TOO_LATE if late else TOO_SOON,
    )
    trial.expect(
        "served",
        "at least 1",
        f"{len(served)} of {count}",
        bool(served),
        "no request was served: what else rejects them?",
    )
    done = trial.wait_for(trial.counters, lambda now: now.since(before).models[MODEL].rejected >= len(refused))
    counted = done.since(before).models[MODEL]
    trial.expect(
        "refusals that Triton counts as REJECTED",
        f"at least {len(refused)}",
        f"{counted.rejected:.0f}",
        counted.rejected >= len(refused),
        "requests failed, but for another reason than the queue policy.",
    )


def queue_policies(config):
    """The policies of the dynamic batcher's queue."""
    batcher = config.get("dynamic_batching", {})
    policies = [batcher.get("default_queue_policy"), *batcher.get("priority_queue_policy", {}).values()]
    return [policy for policy in policies if policy]


def overload(trial, count, tokens):
    """So many requests at once, when all of them have been answered or rejected."""
    with trial.unary() as client:
        records = [trial.ask(client, "ensemble", trial.rng.choice(PROMPTS), tokens) for _ in range(count)]
        trial.wait_ended(client, *records)
    return records
