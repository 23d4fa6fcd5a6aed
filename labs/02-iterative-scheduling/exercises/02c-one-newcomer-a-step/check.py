"""Eight requests at once: at most one new request a step, every running request in it, first come, first served.

What is judged is counted around the model, which is handed its requests as Triton is free to do it: in another order
each time, and once without the newcomer that is next.
"""

PROMPTS = ("The fox", "My favourite food is", "Once upon a time", "In winter the", "I have lived in Seoul")


def check(trial):
    requests = [(trial.rng.choice(PROMPTS), trial.rng.randint(12, 20)) for _ in range(8)]
    records = trial.answers("iterative-gpt2", requests, ignore_eos=True)
    steps = trial.steps("iterative-gpt2")
    # A prompt counts where it is computed, and where its first token is sent: one may come later than the other.
    most = max((max(step.more["prompts"], step.prefill) for step in steps), default=0)
    trial.expect(
        "new requests that were computed or answered in one execution, at most",
        "1",
        most,
        most == 1,
        "several prompts were computed in one step, and every other request waited for all of them: "
        "admit one new request a step.",
    )
    whole = sum(len(record.responses) == tokens for record, (_, tokens) in zip(records, requests, strict=True))
    trial.expect(
        "requests answered whole",
        "8",
        whole,
        whole == 8,
        "an answer has too few tokens: is every request that needs more given back to Triton?",
    )
    left_out = sum(step.more["left_out"] for step in steps)
    trial.expect(
        "running requests that were there and got no token",
        "0",
        left_out,
        left_out == 0,
        "a running request was left out of a step: only new requests are limited, not running ones.",
    )
    overtaken = sum(step.more["overtaken"] for step in steps)
    trial.expect(
        "requests overtaken",
        "0",
        overtaken,
        overtaken == 0,
        "a later request got its first token earlier: keep the order of arrival.",
    )
    held_up = sum(step.more["held_up"] for step in steps)
    trial.expect(
        "steps that the next new request was there for and did not join",
        "0",
        held_up,
        held_up == 0,
        "a new request had to wait although it was the next: one joins in each step, however many are running.",
    )
