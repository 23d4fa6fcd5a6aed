"""One request, and three more while it is answered: they must share steps, and the texts must be right.

Three, because Triton forms the next batch while a step is computed: two requests can take turns for as long as chance
has it, each in a batch of its own. Of four in two batches some share one, whatever chance does.
"""

PROMPTS = ("The fox", "My favourite food is", "Once upon a time", "In winter the", "I have lived in Seoul")


def check(trial):
    prompts = trial.rng.sample(PROMPTS, 4)
    lengths = [trial.rng.randint(60, 90), *(trial.rng.randint(12, 20) for _ in prompts[1:])]
    asked = list(zip(prompts, lengths, strict=True))
    with trial.stream() as stream:
        first = stream.send("iterative-gpt2", prompts[0], max_tokens=lengths[0], ignore_eos=True)
        trial.wait_first(stream, first)
        more = [stream.send("iterative-gpt2", text, max_tokens=n, ignore_eos=True) for text, n in asked[1:]]
        trial.wait(stream, first, *more)
    alone = trial.answers("simple-gpt2", asked, ignore_eos=True)

    began = min(record.responses[0][0] for record in more)
    waited = sum(moment < began for moment, _ in first.responses)
    trial.expect(
        "tokens of the first answer before the second began",
        f"fewer than {lengths[0]}",
        waited,
        waited < lengths[0],
        "the second request had to wait for the whole first answer: is there still a loop inside execute?",
    )
    steps = trial.steps("iterative-gpt2")
    most = max((max(step.more["made"]) for step in steps if step.batch), default=0)
    trial.expect(
        "tokens of one request in one execution, at most",
        "1",
        most,
        most <= 1,
        "a request got several tokens in one execution while newer requests waited: return after each token.",
    )
    shared = sum(step.batch > 1 and step.more["passes"] == 1 for step in steps)
    trial.expect(
        "executions with one forward pass for several requests",
        "at least 3",
        shared,
        shared >= 3,
        "no two requests were in one step: does execute make a token for every request in the batch?",
    )
    right = [record.text == answer.text for record, answer in zip((first, *more), alone, strict=True)]
    trial.expect(
        "texts as simple-gpt2 has them",
        "4 of 4",
        f"{sum(right)} of 4",
        all(right),
        "a text is not what the same prompt gives alone: does every sequence keep its own state?",
    )
