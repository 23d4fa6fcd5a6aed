"""Three prompts by the learner's client: a response for each token, the last one marked, and the engine's own text."""

import json

PROMPTS = ("I am going to", "The fox", "My favourite food is", "In the middle of the night", "Anna", "The best thing")

REFUSED = "Triton refused the client's request: a decoupled model is asked over a stream."
ONE = "the client took one response and left: it must go on until the last one."
WHOLE = "the whole answer came in one response: the engine streams where the input `stream` is true."


def check(trial):
    prompts = trial.rng.sample(PROMPTS, 3)
    tokens = trial.rng.randint(8, 16)
    try:
        answers = trial.client("client.py", json.dumps(prompts), str(tokens))
    except trial.Error as error:
        if "decoupled" not in error.why:
            raise
        trial.expect("the request", "answered", error.why, False, REFUSED)
        return
    with trial.stream() as stream:
        right = [trial.ask(stream, "ensemble", prompt, tokens) for prompt in prompts]
        trial.wait(stream, *right)
    counts = [len(answer) for answer in answers]
    whole = counts == [1] * 3 and all(prompt in answer[0][0] for prompt, answer in zip(prompts, answers, strict=True))
    trial.expect(
        "responses to each prompt",
        " ".join([f"{tokens}"] * 3),
        " ".join(map(str, counts)),
        counts == [tokens] * 3,
        WHOLE if whole else ONE,
    )
    last = [[final for _, final in answer] for answer in answers]
    trial.expect(
        "marked as the last",
        "only the last of each",
        f"{sum(map(sum, last))} of {sum(counts)}",
        all(marks == [False] * (len(marks) - 1) + [True] for marks in last),
        "a response in the middle counts as the last one, or none does: what does `is_last` say of each?",
    )
    same = sum("".join(t for t, _ in answer) == record.text for answer, record in zip(answers, right, strict=True))
    trial.expect(
        "texts as the engine gives them",
        "3 of 3",
        f"{same} of 3",
        same == 3,
        "the texts of a prompt's responses, one behind the other, are not its answer: are all of them there, in order?",
    )
