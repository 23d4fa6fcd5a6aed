"""Walks through the grammar in a process of their own, then the real server: JSON that parses, at any temperature.

At a temperature of 100 every allowed token is nearly as likely as any other, so a token that is allowed wrongly comes.
"""

import json
import runpy
from pathlib import Path

MODEL, PLAIN = "iterative-gpt2", "simple-gpt2"
WISH = json.dumps({"json": {"type": "object"}})
PROMPTS = ("The fox", "My favourite food is", "Once upon a time", "In winter the", "I have lived in Seoul")
FORBIDDEN = "the server sampled a token that your grammar does not allow: `allowed` and `accept` must agree."
PARSES = "an answer that ended is not JSON: the end token came too early."
BESIDE = "a request without a schema got other tokens than alone: what does your file keep between requests?"
ENDED = "no answer came to its end: is the end token allowed when the object is complete?"


def check(trial):
    file = Path(__file__).with_name("properties.py")
    found = trial.call(str(file), "search", str(trial.folder), trial.rng.randrange(10**6))
    said, sentence = (found["case"], found["sentence"]) if found else ("none", "")
    if not trial.expect("tokens that the mask gets wrong", "none", said, found is None, sentence):
        return
    free = (trial.rng.choice(PROMPTS), 40)
    with trial.stream() as stream:
        records = [
            stream.send(MODEL, trial.rng.choice(PROMPTS), max_tokens=80, structured_outputs=WISH, **sampled)
            for sampled in ({"temperature": 100.0, "seed": trial.rng.randrange(10**6)} for _ in range(6))
        ]
        beside = stream.send(MODEL, free[0], max_tokens=free[1], ignore_eos=True)
        trial.wait(stream, *records, beside)
    alone = trial.answers(PLAIN, [free], ignore_eos=True)[0]
    after = runpy.run_path(str(file))["after"]
    states = [walked(record, after) for record in records]
    tokens, forbidden = sum(count for _, count, _ in states), sum(wrong for *_, wrong in states)
    trial.expect(f"forbidden tokens, of {tokens} sampled", "0", forbidden, forbidden == 0, FORBIDDEN)
    ended = [record.text for record, (state, *_) in zip(records, states, strict=True) if state and state[0] == "done"]
    broken = sum(not parses(text) for text in ended)
    trial.expect(f"ended answers that are not JSON, of {len(ended)}", "0", broken, broken == 0, PARSES)
    trial.expect("answers that ended", "at least 1", len(ended), len(ended) >= 1, ENDED)
    same = beside.text == alone.text
    trial.expect("an answer beside them as simple-gpt2 has it", "yes", "yes" if same else "no", same, BESIDE)


def walked(record, after):
    """The state of the grammar after an answer, its tokens with a text, and how many of them it does not allow."""
    state, pieces = ("start", (), 0), [text for _, text in record.responses if text]
    for number, piece in enumerate(pieces):
        if (state := after(state, piece)) is None:
            return None, len(pieces), len(pieces) - number
    return state, len(pieces), 0


def parses(text):
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False
