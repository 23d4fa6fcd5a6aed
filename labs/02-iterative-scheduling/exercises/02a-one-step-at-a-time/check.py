"""Two requests, the second while the first is answered: they must share steps, and the texts must be right."""

PROMPTS = ("The fox", "My favourite food is", "Once upon a time", "In winter the", "I have lived in Seoul")


def check(trial):
    first, second = trial.rng.sample(PROMPTS, 2)
    lengths = trial.rng.randint(60, 90), trial.rng.randint(12, 20)
    with trial.stream() as stream:
        one = stream.send("iterative-gpt2", first, max_tokens=lengths[0], ignore_eos=True)
        trial.wait_first(stream, one)
        two = stream.send("iterative-gpt2", second, max_tokens=lengths[1], ignore_eos=True)
        trial.wait(stream, one, two)
    pairs = zip((one, two), lengths, strict=True)
    alone = [trial.answers("simple-gpt2", [(r.prompt, n)], ignore_eos=True)[0] for r, n in pairs]

    waited = sum(moment < two.responses[0][0] for moment, _ in one.responses)
    trial.expect(
        "tokens of the first answer before the second began",
        f"fewer than {lengths[0]}",
        waited,
        waited < lengths[0],
        "the second request had to wait for the whole first answer: is there still a loop inside execute?",
    )
    shared = sum(step.batch == 2 for step in trial.steps("iterative-gpt2"))
    trial.expect(
        "steps with both requests",
        "at least 3",
        shared,
        shared >= 3,
        "the two requests were never in one step: does execute make a token for everybody in the batch?",
    )
    right = [r.text == a.text for r, a in zip((one, two), alone, strict=True)]
    trial.expect(
        "texts as simple-gpt2 has them",
        "2 of 2",
        f"{sum(right)} of 2",
        all(right),
        "a text is not what the same prompt gives alone: does every sequence keep its own state?",
    )
