"""Eight requests at once: at most one prompt a step, everybody answered, first come, first served."""

from itertools import pairwise

PROMPTS = ("The fox", "My favourite food is", "Once upon a time", "In winter the", "I have lived in Seoul")


def check(trial):
    requests = [(trial.rng.choice(PROMPTS), trial.rng.randint(12, 20)) for _ in range(8)]
    records = trial.answers("iterative-gpt2", requests, ignore_eos=True)
    steps = trial.steps("iterative-gpt2")
    most = max((step.more["prefill"] for step in steps), default=0)
    trial.expect(
        "prompts in one step, at most",
        "1",
        most,
        most == 1,
        "several prompts went through the model in one step, and everybody else waited for all of them: "
        "admit one newcomer a step.",
    )
    whole = sum(len(record.responses) == tokens for record, (_, tokens) in zip(records, requests, strict=True))
    trial.expect(
        "requests answered whole",
        "8",
        whole,
        whole == 8,
        "an answer has too few tokens: does everybody who needs more go back to Triton?",
    )
    largest = max((step.batch for step in steps), default=0)
    trial.expect(
        "largest batch",
        "more than 2",
        largest,
        largest > 2,
        "those who run must all be in every step; only newcomers are limited.",
    )
    first_tokens = [record.responses[0][0] for record in records]
    late = sum(one > other for one, other in pairwise(first_tokens))
    trial.expect(
        "requests overtaken",
        "0",
        late,
        late == 0,
        "somebody who came later had a first token earlier: keep the order in which they came.",
    )
