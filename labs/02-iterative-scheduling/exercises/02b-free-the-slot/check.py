"""More requests than slots, one after the other and then together: all are answered, and no slot stays taken."""

PROMPTS = ("The fox", "My favourite food is", "Once upon a time", "In winter the", "I have lived in Seoul")
TAKEN = "a request found no free slot of the KV cache: what becomes of the slot of a sequence that is finished?"
SLOT = "a slot stays in use although every request has its answer."
KEPT = "something is kept of every sequence that is finished: take it out of `self.sequences` too."
COMPUTED_AGAIN = (
    "a running sequence lost its slot, and its text was computed again from its first token: "
    "release a slot only when its sequence is finished."
)
UNKNOWN = "the model was called for a sequence that it had forgotten: only a finished sequence may be forgotten."


def check(trial):
    slots = trial.settings["max_batch_size"]
    requests = [(trial.rng.choice(PROMPTS), trial.rng.randint(3, 9)) for _ in range(2 * slots + 1)]
    with trial.explain_errors(UNKNOWN, because=r"KeyError: \d"):
        first = trial.answers("iterative-gpt2", requests[:1], ignore_eos=True)
    with (
        trial.explain_errors(UNKNOWN, because=r"KeyError: \d"),
        trial.explain_errors(TAKEN, because="slots of the KV cache are taken"),
    ):
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
        "some requests got no answer: is a slot freed while its sequence still runs?",
    )
    prompts, asked = sum(step.more["prompts"] for step in trial.steps("iterative-gpt2")), len(requests) + slots
    trial.expect("prompts that were computed", f"{asked}", prompts, prompts == asked, COMPUTED_AGAIN)
    used, more = trial.wait_for(lambda: left(trial, requests[0]), lambda found: found == (0, 0))
    trial.expect("slots taken after the last answer", "0", used, used == 0, SLOT)
    trial.expect("things kept of sequences that are finished", "0", more, more <= 0, KEPT)


def left(trial, request):
    """Slots that are taken when all are answered, and how many more things are kept than after the first answer."""
    steps = trial.steps("iterative-gpt2")
    first = request[1]  # it had so many tokens, alone
    return steps[-1].more.get("slots_used", 0), steps[-1].more["kept"] - steps[first - 1].more["kept"]
