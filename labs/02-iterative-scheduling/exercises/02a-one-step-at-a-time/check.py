"""One request, and three more while it is answered: they must share steps, and the texts must be right.

Three, because Triton forms the next batch while a step is computed: two requests can take turns for as long as chance
has it, each in a batch of its own. Of four in two batches some share one, whatever chance does.
"""

PROMPTS = ("The fox", "My favourite food is", "Once upon a time", "In winter the", "I have lived in Seoul")
ENOUGH = 3  # executions of several requests


def check(trial):
    prompts = trial.rng.sample(PROMPTS, 4)
    lengths = [trial.rng.randint(60, 90), *(trial.rng.randint(12, 20) for _ in prompts[1:])]
    asked = list(zip(prompts, lengths, strict=True))
    first, *more = ask(trial, asked, at_once=False)
    apart = waited_for(first, more) == lengths[0] or together(trial) < ENOUGH
    if apart and most_made(trial) <= 1:  # no loop: on a busy machine they came too late
        first, *more = ask(trial, asked, at_once=True)
    alone = trial.answers("simple-gpt2", asked, ignore_eos=True)

    waited, most = waited_for(first, more), most_made(trial)
    shared = sum(step.batch > 1 and step.more["passes"] == 1 for step in trial.steps("iterative-gpt2"))
    left = sum(step.more["left_out"] + step.more["held_up"] for step in trial.steps("iterative-gpt2"))
    never_met = together(trial) < ENOUGH and not left
    if most <= 1 and (never_met or (waited == lengths[0] and shared >= ENOUGH)):
        raise trial.TooBusy("a request had ended before the next one was there")
    trial.expect(
        "tokens of the first answer before the second began",
        f"fewer than {lengths[0]}",
        waited,
        waited < lengths[0],
        "the second request had to wait for the whole first answer: is there still a loop inside execute?",
    )
    trial.expect(
        "tokens of one request in one execution, at most",
        "1",
        most,
        most <= 1,
        "a request got several tokens in one execution while newer requests waited: return after each token.",
    )
    trial.expect(
        "executions with one forward pass for several requests",
        f"at least {ENOUGH}",
        shared,
        shared >= ENOUGH,
        "no two requests were in one step: does execute make a token for every request in the batch?",
    )
    trial.expect(
        "requests that were in an execution and got no token",
        "0",
        left,
        left == 0,
        "a request was handed to execute and got no token: make one for each request of the batch.",
    )
    right = [record.text == answer.text for record, answer in zip((first, *more), alone, strict=True)]
    trial.expect(
        "texts as simple-gpt2 has them",
        "4 of 4",
        f"{sum(right)} of 4",
        all(right),
        "a text is not what the same prompt gives alone: does every sequence keep its own state?",
    )


def ask(trial, asked, at_once):
    """The answers, where the others are sent with the first request, or when it has its first token."""
    with trial.stream() as stream:
        records = []
        for prompt, tokens in asked:
            records.append(stream.send("iterative-gpt2", prompt, max_tokens=tokens, ignore_eos=True))
            if not at_once:
                trial.wait_first(stream, records[0])
        trial.wait(stream, *records)
    return records


def waited_for(first, more):
    """Tokens of the first answer that came before any of the others began."""
    began = min(record.responses[0][0] for record in more)
    return sum(moment < began for moment, _ in first.responses)


def together(trial):
    """Executions in which several requests got a token."""
    return sum(step.batch > 1 for step in trial.steps("iterative-gpt2"))


def most_made(trial):
    """The most tokens of one request in one execution."""
    return max((max(step.made) for step in trial.steps("iterative-gpt2") if step.batch), default=0)
