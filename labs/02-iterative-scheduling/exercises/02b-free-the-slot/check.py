"""More requests than slots, one after the other and then together: all are answered, and no slot stays taken."""

PROMPTS = ("The fox", "My favourite food is", "Once upon a time", "In winter the", "I have lived in Seoul")
TAKEN = "a request found no free slot of the KV cache: what becomes of the slot of a sequence that is finished?"
UNKNOWN = "the model was called for a sequence that it had forgotten: only a finished sequence may be forgotten."


def check(trial):
    slots = trial.settings["max_batch_size"]
    requests = [(trial.rng.choice(PROMPTS), trial.rng.randint(3, 9)) for _ in range(2 * slots + 1)]
    with trial.explained(UNKNOWN):
        first = trial.answers("iterative-gpt2", requests[:1], ignore_eos=True)
    with trial.explained(TAKEN):
        others = [trial.answers("iterative-gpt2", [request], ignore_eos=True)[0] for request in requests[1:]]
        together = trial.answers("iterative-gpt2", requests[:slots], ignore_eos=True)
    answered = sum(len(r.responses) == n for r, (_, n) in zip([*first, *others], requests, strict=True))
    trial.expect(
        f"requests answered whole, one after the other ({slots} slots)",
        f"{len(requests)}",
        answered,
        answered == len(requests),
        "an answer has too few tokens: is a sequence forgotten before it is finished?",
    )
    trial.expect(
        "requests answered together",
        f"{slots}",
        len(together),
        len(together) == slots,
        "not everybody was answered: is a slot taken from a sequence that still runs?",
    )
    used = trial.settled(lambda: [s.more["slots_used"] for s in trial.steps("iterative-gpt2")][-1:], lambda u: u == [0])
    trial.expect(
        "slots taken after the last answer",
        "0",
        used[0] if used else "unknown",
        used == [0],
        "a slot stays taken although everybody has an answer.",
    )
