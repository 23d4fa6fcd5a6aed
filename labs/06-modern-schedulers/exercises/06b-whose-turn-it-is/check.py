"""Two tenants at a time: while both wait, both get the same service, whatever their requests and arrival times.

Each part tests one way of being unfair. Requests are queued before the first of them joins, or arrive after a given
number of steps, so that the seed decides every step. The last part searches for another way, on a counting engine.
"""

import ast
from typing import NamedTuple

from labkit.evidence import bounds

SHIPPED = {"Fair", "ORDERS", "order"}
OWN = "the order that does the work here comes from labsched: write the four methods of `Fair` yourself."
FLOOD = "the flood goes first, and the other tenant gets what is left: first come, first served knows no tenants."
REQUESTS = "both tenants get the same number of requests, not of tokens: the one with longer answers gets more."
PROMPTS = "the tenant with long prompts gets more: a token of a prompt counts too, half as much as a new token."
ANSWERS = "the tenant with long answers gets more: a new token counts as two tokens of a prompt."
SAVED = (
    "a tenant that comes back after a pause is served alone until it has caught up: what was not used is not saved up."
)
WIPED = (
    "a tenant that sends one request after the other goes before all others: a new request must not wipe out what "
    "its tenant has been served."
)
BOUND = (
    "on the requests shown, with one slot, two tenants get further apart than twice a longest request: no tenant may "
    "go before another one that has been served less."
)


class Kind(NamedTuple):
    """What a tenant's requests are like, in tokens."""

    prompt: int
    answer: int

    @property
    def price(self):
        return self.prompt + 2 * self.answer


LONG, SHORT = Kind(16, 48), Kind(16, 16)
READER, WRITER = Kind(160, 8), Kind(16, 80)  # of one price


def check(trial):
    source = (trial.folder / "scheduler.py").read_text(encoding="utf-8")
    used = shipped_names(source)
    if not trial.expect("an order of your own", "yes", f"uses {', '.join(used)}" if used else "yes", not used, OWN):
        return
    reader, writer = tenants(trial, "reader", "writer")
    pairs = zip(ask(trial, reader, READER, 32), ask(trial, writer, WRITER, 32), strict=True)
    ahead, behind = apart(trial, reader, writer, [one for pair in pairs for one in pair])
    # A prompt counts at once and an answer token by token, so both may be ahead by what is in the batch.
    said = PROMPTS if ahead > behind else ANSWERS
    expect(trial, "long prompts against long answers", max(ahead, behind), said, most=2.5)

    flood, light = tenants(trial, "flood", "light")
    behind, _ = apart(trial, flood, light, ask(trial, flood, LONG, 20) + ask(trial, light, SHORT, 12))
    expect(trial, "a flood", behind, FLOOD if behind >= 5 else REQUESTS)

    busy, away = tenants(trial, "busy", "away")
    trial.send_queued(ask(trial, away, SHORT, 1))
    trial.send_queued(ask(trial, busy, LONG, 8))  # while the other one is away
    _, ahead = apart(trial, busy, away, ask(trial, busy, LONG, 10) + ask(trial, away, SHORT, 24))
    expect(trial, "after a pause", ahead, SAVED)

    crowd, drip = tenants(trial, "crowd", "drip")
    first = ask(trial, crowd, LONG, 20) + ask(trial, drip, SHORT, 6)
    later = [(5 * number, request) for number, request in enumerate(ask(trial, drip, SHORT, 20), 1)]
    _, ahead = apart(trial, crowd, drip, first, later)
    expect(trial, "one request after the other", ahead, WIPED)

    found = trial.call(bounds.__file__, "search", str(trial.folder), "fair", trial.rng.randrange(10**6))
    trial.expect("requests on which it is unfair, searched for", "none", in_words(found), found is None, BOUND)


def in_words(found):
    """The search's counterexample in words."""
    if not found or "error" in found:
        return found["error"] if found else "none"
    requests = ", ".join(f"{tenant} {prompt}+{answer}" for tenant, prompt, answer in found["requests"])
    apart = f"{found['measured']:g} tokens apart, of at most {found['most']:g}"
    return f"{apart}\n{len(found['requests'])} requests (tenant prompt+answer): {requests}"


def expect(trial, name, requests, sentence, most=1.0):
    title = f"{name}: ahead of its share, in requests"
    trial.expect(title, f"at most {most:g}", f"{requests:.1f}", requests <= most, sentence)


def tenants(trial, *names):
    return [f"{name}-{trial.rng.randrange(10**9)}" for name in names]


def ask(trial, tenant, kind, count):
    return [
        ([trial.rng.randint(5, 2000) for _ in range(kind.prompt)], kind.answer, {"tenant": tenant})
        for _ in range(count)
    ]


def apart(trial, one, other, requests, later=()):
    """How far each of the two tenants got ahead of its half while both waited, in requests of the larger price."""
    records, steps = trial.send_queued(requests, later)
    asked = [*requests, *(request for _, request in later)]
    whose = {record.id: more["tenant"] for record, (_, _, more) in zip(records, asked, strict=True)}
    price = max(len(prompt) + 2 * answer for prompt, answer, _ in asked)
    served, least, most, ahead, behind = 0, 0, 0, 0, 0  # of the one, less that of the other
    for step in steps:
        if {whose[id] for id in step.waiting if id in whose} != {one, other}:
            least = most = served = 0
            continue
        for id, letter, computed, made in zip(step.ids, step.phase, step.tokens, step.made, strict=True):
            count = (computed if letter == "p" else 0) + 2 * made
            served += count if whose[id] == one else -count
        ahead, behind = max(ahead, served - least), max(behind, most - served)
        least, most = min(least, served), max(most, served)
    return ahead / 2 / price, behind / 2 / price


def shipped_names(source):
    """What the file uses of the labs' own orders."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "order":
            found |= {node.attr} & SHIPPED
        if isinstance(node, ast.ImportFrom) and (node.module or "").endswith("labsched.order"):
            found |= {name.name for name in node.names} & SHIPPED
    return sorted(found)
