"""About 1.5 s of work at once for a model whose queue may hold 0.5 s of it: who is served, who is turned away?"""

from time import monotonic

MODEL = "codegen-350M-mono-gptj"
PROMPTS = ("def add(a, b):", "def is_prime(n):", "def count_vowels(text):", "def double(n):", "def largest(items):")
MOST_MS = 500
WORK_S = 1.5

ENDLESS = (
    "nobody was turned away, so the queue grew with the load: "
    "does it have a time-out, and an action for when it is over?"
)
TOO_SOON = (
    "somebody was turned away before 500 ms were over: the time-out is in microseconds, and 500 ms are 500000 of them."
)
DELAYED = "nobody was turned away: DELAY puts a request whose time is over behind the others, and still computes it."


def check(trial):
    tokens = trial.rng.randint(8, 12)
    batch_s = min(timed(trial, tokens) for _ in range(3))
    count = min(600, max(48, round(4 * WORK_S / batch_s)))
    before = trial.counters()
    records = overload(trial, count, tokens)
    if max(r.end - r.start for r in records) < 0.8 * WORK_S and not any(r.error for r in records):
        count *= 2  # too little work: the machine was busier while it was timed
        records = overload(trial, count, tokens)
    served, refused = [r for r in records if r.ok], [r for r in records if r.error]

    delayed = "DELAY" in (trial.folder / "config.pbtxt").read_text(encoding="utf-8")
    trial.expect(
        "turned away", "somebody", f"{len(refused)} of {count}", bool(refused), DELAYED if delayed else ENDLESS
    )
    soonest = min((r.end - r.start for r in refused), default=0.0)  # from the client, so never shorter than the queue
    trial.expect(
        "turned away after", f"at least {MOST_MS} ms", f"{1e3 * soonest:.0f} ms", 1e3 * soonest >= MOST_MS, TOO_SOON
    )
    trial.expect(
        "served", "somebody", f"{len(served)} of {count}", bool(served), "nobody was served: what else turns them away?"
    )
    done = trial.settled(trial.counters, lambda now: now.since(before).models[MODEL].rejected >= len(refused))
    counted = done.since(before).models[MODEL]
    trial.expect(
        "refusals that Triton counts as REJECTED",
        f"at least {len(refused)}",
        f"{counted.rejected:.0f}",
        counted.rejected >= len(refused),
        "requests failed, but for another reason than the queue policy.",
    )
    trial.expect(
        "time of the served in the queue, on average",
        f"at most {MOST_MS} ms",
        f"{counted.queue_ms:.0f} ms",
        counted.queue_ms <= MOST_MS,
        "those who were served had waited for longer than 500 ms: is the time-out too long?",
    )


def overload(trial, count, tokens):
    """So many requests at once, when all of them have been answered or turned away."""
    with trial.unary() as client:
        records = [trial.ask(client, "ensemble", trial.rng.choice(PROMPTS), tokens) for _ in range(count)]
        trial.ended(client, *records)
    return records


def timed(trial, tokens):
    """Seconds that one full batch takes: the load is made to measure for this machine."""
    began = monotonic()
    with trial.unary() as client:
        trial.ended(client, *[trial.ask(client, "ensemble", prompt, tokens) for prompt in PROMPTS[:4]])
    return monotonic() - began
