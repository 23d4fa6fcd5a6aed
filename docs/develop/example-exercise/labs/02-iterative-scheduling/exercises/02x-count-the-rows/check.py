PROMPTS = ("The fox", "Once upon a time", "In winter the")


def check(trial):
    lengths = [trial.rng.randint(8, 14), trial.rng.randint(20, 30)]
    trial.answers("iterative-gpt2", [(trial.rng.choice(PROMPTS), n) for n in lengths], ignore_eos=True)
    rows = sum(step.batch for step in trial.steps("iterative-gpt2"))
    said = trial.call("predict.py", "predict", lengths)
    sentences = {
        max(lengths): "those are the steps of the longest answer: each step has a row for each request in it.",
        len(lengths) * max(lengths): "nothing is padded: a finished request has no row in the steps that follow.",
        len(lengths): "a request is not done in one step: it has a row for each of its tokens.",
    }
    trial.expect("rows", f"{rows}", said, said == rows, sentences.get(said, "add up the batches of the step log."))
