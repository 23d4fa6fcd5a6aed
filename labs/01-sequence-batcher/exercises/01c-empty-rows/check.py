"""Three sequences under Direct. Only the last one goes on: the other rows are empty, and its answers stay right."""

PROMPTS = ("The fox", "My favourite food is", "Once upon a time", "In winter the", "I have lived in Seoul")
BEGIN = "a sequence could not begin: READY says which rows are empty, nothing else does."
EMPTY = (
    "the model took an empty slot for a request: under Direct there is a row for every slot up to the last one that "
    "has a request."
)
NO_NEWS = "a request with an empty text was taken for an empty row: READY says which rows are empty, nothing else does."
COUNT = (
    "a row was left without an answer: Triton wants one response for each request that it handed over, empty ones too."
)


def check(trial):
    prompts = trial.rng.sample(PROMPTS, 3)
    base = trial.rng.randrange(2000, 9000, 10)
    with trial.sequences("ensemble_pipeline") as client:
        text = prompts[2]
        for _ in range(4):  # the expected answer: the whole text as one request
            with trial.explain_errors(BEGIN, because="KeyError"):
                text += client.ask(text, base + 5, start=True, end=True)
        trial.expect("a sequence alone", "begins", repr(text), len(text) > len(prompts[2]), BEGIN)
        with (
            trial.explain_errors(COUNT, because="Number of InferenceResponse objects"),
            trial.explain_errors(EMPTY, because="KeyError"),
        ):
            news = [client.ask(prompts[n], base + n, start=True) for n in range(3)]
            grown = prompts[2] + news[2]
            for step in range(3):
                news[2] = client.ask(news[2], base + 2, end=step == 2)
                grown += news[2]
                if step == 0:  # a real request that adds nothing has the same answer
                    before, again = news[2], client.ask("", base + 2)
        for n in range(2):
            client.ask("", base + n, end=True)
    trial.expect("a request with an empty text", repr(before), repr(again), again == before, NO_NEWS)
    empty = sum(step.more["empty"] for step in trial.steps("tokenizer"))
    trial.expect(
        "empty rows", "at least 3", empty, empty >= 3, "there were no empty rows: did another client use this server?"
    )
    trial.expect(
        "the third sequence",
        "as its whole text",
        repr(grown[len(prompts[2]) :]),
        grown == text,
        "the third sequence's answers are not those of its whole text: an empty row changed its state.",
    )
