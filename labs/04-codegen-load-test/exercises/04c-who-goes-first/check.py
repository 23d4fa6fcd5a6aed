"""Forty ordinary requests, then eight urgent ones: in which order were they finished?"""

MODEL = "codegen-350M-mono-gptj"
PROMPTS = ("def add(a, b):", "def is_prime(n):", "def count_vowels(text):", "def double(n):", "def largest(items):")
ORDINARY, HURRIED, FIRST = 40, 8, 1

ONE_QUEUE = "no request was overtaken: does this model's queue have priority levels?"
ALL_FIRST = (
    "no request was overtaken: 1 is the highest level, "
    "and default_priority_level 1 gives it to every request that names none."
)


def check(trial):
    tokens = trial.rng.randint(24, 32)
    with trial.unary() as client:
        ordinary = [trial.ask(client, "ensemble", trial.rng.choice(PROMPTS), tokens) for _ in range(ORDINARY)]
        hurried = [
            trial.ask(client, "ensemble", trial.rng.choice(PROMPTS), tokens, priority=FIRST) for _ in range(HURRIED)
        ]
        trial.wait_ended(client, *ordinary, *hurried)
    every = [*ordinary, *hurried]
    answered = sum(record.ok for record in every)
    trial.expect(
        "requests answered",
        len(every),
        answered,
        answered == len(every),
        "a request was rejected: requests without a priority wait longer, but they must be answered.",
    )
    last = max(record.end for record in hurried)
    overtaken = sum(record.end > last for record in ordinary)
    there = sum(record.end > max(urgent.start for urgent in hurried) for record in ordinary)
    if overtaken < ORDINARY // 4 and there < ORDINARY // 2:
        raise trial.TooBusy("most ordinary requests were answered before the urgent ones had been sent")
    levels = "priority_levels" in (trial.folder / "config.pbtxt").read_text(encoding="utf-8")
    trial.expect(
        "ordinary requests that every urgent one overtook",
        f"at least {ORDINARY // 4} of {ORDINARY}",
        overtaken,
        overtaken >= ORDINARY // 4,
        ALL_FIRST if levels else ONE_QUEUE,
    )
