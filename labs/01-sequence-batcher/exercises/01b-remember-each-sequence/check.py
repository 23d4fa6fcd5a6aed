"""Sequences that send only what is new, side by side: answers as for whole texts, and nothing kept afterwards."""

import time

PROMPTS = ("The fox", "My favourite food is", "Once upon a time", "In winter the", "I have lived in Seoul")
HEARD = "a sequence was forgotten although it had not been silent for idle_limit: note the time of each request."
MIXED = "a sequence was continued with another one's text: state belongs to a correlation id, not to a row."


def check(trial):
    prompts = trial.rng.sample(PROMPTS, 3)
    first_id = trial.rng.randrange(2000, 9000, 10)
    ids, steps = [first_id + n for n in range(3)], trial.rng.randint(4, 6)
    with trial.sequences("ensemble_pipeline") as client:
        whole = []
        for prompt in prompts:  # the whole text as one request: what is right
            text = prompt
            for _ in range(steps):
                text += client.ask(text, first_id + 7, start=True, end=True)
            whole.append(text)
        before = kept(trial)
        alone = piecewise(client, prompts[:1], ids[:1], steps)
        trial.expect(
            "a sequence alone",
            "as its whole text",
            repr(alone[0][len(prompts[0]) :]),
            alone[0] == whole[0],
            "the answers are not those of the whole text: what came before is forgotten.",
        )
        if not trial.passed:
            return
        with trial.explain_errors(MIXED, because="KeyError|IndexError"):
            together = piecewise(client, prompts, ids, steps)
        right = sum(one == other for one, other in zip(together, whole, strict=True))
        trial.expect("three in turn", "3 right", f"{right} right", right == 3, MIXED)
        more = kept(trial) - before
        trial.expect(
            "things in the model's containers after END",
            "no more than before",
            f"{more} more",
            more <= 0,
            "the model still keeps texts of sequences that have ended: END is the moment to forget.",
        )
        if not trial.passed:
            return
        client.ask(prompts[0], first_id + 5, start=True)  # and is never heard of again
        if not lives_on(trial, client, prompts[1], first_id + 4, whole[1]):
            return

        def after_another():
            client.ask(prompts[1], first_id + 6, start=True, end=True)
            return kept(trial) - before

        silent = trial.wait_for(after_another, lambda more: more <= 0, seconds=8)
        trial.expect(
            "entries kept for an idle sequence",
            "0",
            silent,
            silent <= 0,
            "the model still keeps the text of an idle sequence: a client that has gone never sends END.",
        )


def lives_on(trial, client, prompt, id, whole):
    """Whether a sequence is remembered that lives for longer than it may be silent, and never is for so long."""
    limit = trial.settings["max_sequence_idle_microseconds"] / 1e6
    text, new, sent, longest, lived = prompt, prompt, time.monotonic(), 0.0, False
    try:
        with trial.explain_errors(HEARD, because="KeyError|IndexError"):
            for step in range(3):
                time.sleep(0.6 * limit if step else 0)
                before, sent = sent, time.monotonic()
                try:
                    new = client.ask(new, id, start=step == 0, end=step == 2)
                finally:
                    longest = max(longest, time.monotonic() - before)
                text += new
        lived = whole.startswith(text)
    finally:
        if longest > 0.9 * limit and not lived:
            raise trial.TooBusy("a sequence was silent for longer than the check wanted")
    said = repr(text[len(prompt) :])
    return trial.expect("a sequence that lives for longer", "as its whole text", said, lived, HEARD)


def piecewise(client, prompts, ids, steps):
    """The texts when each sequence in turn sends its prompt first and then only the token that came back."""
    texts, news = list(prompts), list(prompts)
    for step in range(steps):
        for n, id in enumerate(ids):
            news[n] = client.ask(news[n], id, start=step == 0, end=step == steps - 1)
            texts[n] += news[n]
    return texts


def kept(trial):
    """How many more things the model held after its last execution than when it was loaded: counted around it."""
    return trial.steps("tokenizer")[-1].more["kept"]
