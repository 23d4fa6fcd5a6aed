"""Goodput under the learner's settings: crowds of chats, then documents among chats.

Time is counted from the server's steps, so that a busy machine changes nothing of it.
"""

import json
from collections import Counter

from labsched.costs import StepCosts, StepCounts
from labsched.replay.counted_time import latencies, replay_counted, time_steps
from labsched.replay.slo import Slo

MODEL, SETTINGS = "tensorrt_llm", {"max_num_sequences": int, "max_num_tokens": int, "scheduling": str}
COST = StepCosts(step=20, decoding=2, token=0.4)  # milliseconds
CHAT, DOCUMENT = Slo(ttft=800, tpot=46), Slo(ttft=5000, tpot=46)
LONG = 100  # tokens of a prompt from which on it is a document
ONLY = "settings.json sets max_num_sequences and max_num_tokens, two numbers, and scheduling, a word, and nothing else."
CAUSES = {
    "full": "chats wait for a slot and are late: max_num_sequences is too small for a crowd.",
    "behind": "chats are late behind documents, although slots are free: which request should join first?",
    "pieces": "first tokens are late although their requests run: a step has too few tokens left for prompts.",
    "crowd": "tokens come too slowly: too many requests decode in a step, so each step takes too long.",
    "prompts": "tokens come too slowly: a step computes so much of a prompt that each running request waits for it.",
}


def check(trial):
    try:
        wanted = json.loads((trial.folder / "settings.json").read_text(encoding="utf-8"))
    except ValueError as error:
        trial.expect("settings.json", "JSON", error, False, f"settings.json is not JSON: {error}.")
        return
    fits = isinstance(wanted, dict) and {name: type(value) for name, value in wanted.items()} == SETTINGS
    if not trial.expect("settings.json", ", ".join(SETTINGS), wanted, fits, ONLY):
        return
    words = {name: str(value) for name, value in wanted.items()}
    if words.items() - trial.parameters(MODEL).items():
        trial.load_with(MODEL, **words)
    for name, load, least in (("crowds", crowds(trial.rng), 0.85), ("documents", documents(trial.rng), 0.93)):
        lengths, times = [request for _, request in load], [at for at, _ in load]
        found, steps, ids = served(trial, lengths, times)
        large = {id for id, (prompt, _) in zip(ids, lengths, strict=True) if prompt > LONG}
        limits = {id: DOCUMENT if id in large else CHAT for id in ids}
        late = {id for id, (ttft, _) in zip(ids, found, strict=True) if ttft > limits[id].ttft}
        slow = {id for id, (_, tpot) in zip(ids, found, strict=True) if tpot > limits[id].tpot}
        good = 1 - len(late | slow) / len(ids)
        measured = f"{good:.0%} ({len(late)} late, {len(slow)} slow, of {len(ids)})"
        enough, slots = good >= least, wanted["max_num_sequences"]
        ahead = large if wanted["scheduling"] != "shortest_first" else set()  # documents that joined before chats
        why = "" if enough else why_slow(steps, slow) if len(slow) >= len(late) else why_late(steps, late, ahead, slots)
        if not trial.expect(f"{name}: within the limits", f"at least {least:.0%}", measured, enough, why):
            return


def served(trial, lengths, times):
    """TTFT and TPOT of each request in counted milliseconds, the server's steps, and the names of the requests."""
    after, _ = replay_counted(trial.parameters(MODEL), lengths, times, COST)
    requests = [([trial.rng.randint(5, 2000) for _ in range(prompt)], answer) for prompt, answer in lengths]
    first = after.count(0)
    records, steps = trial.send_queued(requests[:first], list(zip(after, requests, strict=True))[first:])
    ids = [record.id for record in records]
    arrived = dict(zip(ids, times, strict=True))
    return latencies(time_steps(steps, arrived, COST), arrived), steps, ids


def why_late(steps, late, documents, slots):
    """What kept the late requests from their first tokens in most steps."""
    counts, begun = Counter(), set()
    for step in steps:
        letters = dict(zip(step.ids, step.phase, strict=True))
        computed = {id for id, count in zip(step.ids, step.tokens, strict=True) if count and letters[id] == "p"}
        # Slots are full of prompts that get no token of the step: other slots would not help.
        starved = any(letter == "p" and not count for letter, count in zip(step.phase, step.tokens, strict=True))
        full = "pieces" if starved else "full"
        counts[full if step.batch >= slots else "behind"] += len(late & set(step.waiting))
        counts["behind" if computed & documents else "pieces"] += len((late & set(step.ids)) - begun)
        begun |= {id for id, made in zip(step.ids, step.made, strict=True) if made}
    return CAUSES[counts.most_common(1)[0][0]]


def why_slow(steps, slow):
    """The reason for most of the long steps in which the slow requests were."""
    counts = Counter()
    for step in steps:
        computed = StepCounts.of(step.phase, step.tokens)
        if COST.seconds(computed) > CHAT.tpot:
            decodes = COST.seconds(computed._replace(prompt=0))
            counts["crowd" if decodes > CHAT.tpot else "prompts"] += len(slow & set(step.ids))
    return CAUSES[counts.most_common(1)[0][0]]


def crowds(rng):
    """Chats at random times, and twice ten at once."""
    return load(rng, 4.0, 10, lambda: (rng.randint(8, 32), rng.randint(20, 36)))


def documents(rng):
    """Chats at random times, and twice six documents at once, which need more memory than there is."""
    return load(rng, 4.5, 6, lambda: (rng.randint(180, 250), rng.randint(6, 12)))


def load(rng, rate, size, more):
    """36 chats, ``rate`` of them a second, and two groups of other requests: (milliseconds, lengths), in order."""
    found, now = [], 0.0
    for number in range(36):
        found.append((now, (rng.randint(8, 32), rng.randint(20, 36))))
        if number % 18 == 9:
            found += [(now + rng.random(), more()) for _ in range(size)]
        now += rng.uniform(500, 1500) / rate
    return sorted(found)
