"""Texts and drafts with one right answer each, for a learner's `propose` and `accept`: the first that differs."""

import importlib.util
import random
import traceback
from pathlib import Path

ROUNDS = 300
NOTHING = "propose returned no draft although the last tokens of the text have been there before."
LIMIT = "propose returned more draft tokens than `most`: the request has a limit, and so has a step."
AIR = "propose returned a draft although the last token of the text has not been there before."
ONE = "the draft follows an earlier place of the last token alone: look for the last three tokens first, then for two."
OLD = "the draft is what followed an older place of the last tokens: the latest one says more."
OTHER = "the draft is not what followed the last tokens at their latest earlier place."
BEHIND = "accept kept a draft token behind one that is wrong: it keeps the longest right beginning."
MORE = "accept kept a draft token that the model does not choose: draft[n] is right if it is chosen[n]."
FEWER = "accept dropped a draft token that the model chooses too: it keeps the longest right beginning."


def search(folder, seed):
    """The first case that a function gets wrong: {"sentence", "case"}; None: none."""
    path = Path(folder) / "lookup.py"
    spec = importlib.util.spec_from_file_location("own_lookup", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    rng = random.Random(seed)
    cases = [(propose, text(rng)) for _ in range(ROUNDS)] + [(accept, draft(rng)) for _ in range(ROUNDS)]
    found = []
    for number, (judge, case) in enumerate(cases):
        try:
            said = judge(module, *case)
        except Exception as error:
            lines = [one.lineno for one in traceback.extract_tb(error.__traceback__) if Path(one.filename) == path]
            words = f"lookup.py, line {lines[-1] if lines else 1}: {type(error).__name__}: {error}"
            said = words, f"{judge.__name__}{case}"
        if said:
            found.append((RANK.index(said[0]) if said[0] in RANK else 0, len(said[1]), number, *said))
    return {"sentence": min(found)[3], "case": min(found)[4]} if found else None


RANK = ("", NOTHING, LIMIT, AIR, ONE, OLD, OTHER, BEHIND, MORE, FEWER)


def text(rng):
    """A text over few tokens, or one in which nothing comes twice; and the length of its draft."""
    if rng.random() < 0.1:
        return rng.sample(range(10, 99), rng.randint(1, 12)), rng.randint(1, 4)
    letters = rng.sample(range(10, 99), rng.randint(2, 6))
    return [rng.choice(letters) for _ in range(rng.randint(2, 24))], rng.randint(1, 4)


def propose(module, ids, most):
    draft = module.propose(list(ids), most)
    places = {n: [at for at in range(len(ids) - n) if ids[at : at + n] == ids[-n:]] for n in (3, 2, 1)}
    longest = next((n for n in (3, 2, 1) if places[n]), 0)
    right = ids[places[longest][-1] + longest :][:most] if longest else []
    case = f"propose({ids}, {most}) returned {draft!r}, not {right}"
    if len(draft) > most:
        return LIMIT, case
    if not longest:
        return (AIR, case) if draft else None
    if not draft:
        return NOTHING, case
    if draft[: len(right)] == right:
        return None
    if draft in [ids[at + longest :][:most] for at in places[longest][:-1]]:
        return OLD, case
    followed = [ids[at + 1 :] for at in places[1]]
    return (ONE if longest > 1 and any(text[: len(draft)] == draft for text in followed) else OTHER), case


def draft(rng):
    """A draft, and what the model chooses after each part of it: often the same."""
    drafted = [rng.randint(10, 14) for _ in range(rng.randint(0, 4))]
    return drafted, [token if rng.random() < 0.6 else rng.randint(10, 14) for token in [*drafted, rng.randint(10, 14)]]


def accept(module, drafted, chosen):
    kept = module.accept(list(drafted), list(chosen))
    right = next((n for n, token in enumerate(drafted) if token != chosen[n]), len(drafted))
    if kept == right:
        return None
    case = f"accept({drafted}, {chosen}) returned {kept!r}, not {right}"
    if kept < right:
        return FEWER, case
    counted = kept == sum(a == b for a, b in zip(drafted, chosen[:-1], strict=True))
    return (BEHIND if counted and drafted[kept - 1] == chosen[kept - 1] else MORE), case
