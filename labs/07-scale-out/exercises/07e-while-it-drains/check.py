"""Users of the learner's client at a gateway that drains by a script: what they ask, and what the server does."""

from itertools import pairwise

from labkit.client.draining import Draining, TryOutcome, User

MODEL, WORDS = "streams", ("one", "two", "three", "four", "five", "six", "seven")
CAP, HERD, REFUSALS, DEADLINE = 8.0, 5, 6, 60
LONG = 200  # tokens of the answer that a user leaves: ten seconds of the server
ENDS = {"wrong": "refused", "too-late": "late", "never": "late"}  # no server computes these
AGAIN = "a request that a drained server refused (503), or cut, was given up: another server would have answered it."
BAD = "a request that is wrong was sent again: it stays wrong. Only 503 and a cut are worth another try."
SOON = "a request was sent again before Retry-After was over: the server said when to come back."
HERDED = "all clients come back at the same moments, and meet the next server at once: waits need jitter."
CAPPED = "a client waited for more than 8 s although no server had asked for it: the back-off needs a cap."
GROWING = "the waits do not grow: a client that is refused again and again must ask less and less often."
LATE = "a client waited although its next try would come after the deadline: it must say so at once."
EARLY = "a client gave up although its next try would come in time: the time that is left counts, not the tries."
SHARED = "two requests had the same key, so one counts as another try of the other: each needs a key of its own."
KEY = "the server computed a request twice: every try of a request needs the same key."
TOKENS = "the user did not see each token once: after a cut, ask only for tokens that were not shown yet."
LEFT = "the user had left, and the client read on: close the answer, so that the server stops computing it."
WORD = 'ask returns how it ended: "answered", "refused", "late" or "left".'


def check(trial):
    rng = trial.rng
    after, cut = rng.randint(10, 20), rng.randint(2, 5)  # seconds, tokens
    herd = {f"herd-{number}": User([TryOutcome(503)] * REFUSALS) for number in range(1, 1 + HERD)}
    users = {
        "drained": User([TryOutcome(503, retry_after=after)]),
        "wrong": User([TryOutcome(rng.choice((404, 409, 422)))] * 3),
        **herd,
        "too-late": User([TryOutcome(503, retry_after=DEADLINE + 10)] * 2),
        "never": User([TryOutcome(503)] * 50),
        "swallowed": User([TryOutcome(cut=0)]),
        "cut": User([TryOutcome(cut=cut), TryOutcome(503, retry_after=2), TryOutcome(cut=cut + 2)]),
        "left": User(leaves=rng.randint(3, 6)),
    }
    asked = {name: rng.choices(WORDS, k=rng.randint(8, 12)) for name in users}
    asked["herd-2"] = asked["herd-1"]  # a key that is made of the text is not the request's own
    with Draining(trial.endpoints.grpc, MODEL, users) as gateway:
        for name, user in users.items():
            tokens = LONG if name == "left" else len(asked[name])
            request = {"prompt": " ".join(asked[name]), "tokens": tokens, "deadline": DEADLINE}
            end = trial.call("client.py", "ask", gateway.url(name), request)
            if not all(judged(trial, name, user, end, asked[name])):
                return
    if not judge_waits(trial, [user.tries for user in herd.values()]):
        return
    clock, least = users["never"].clock, DEADLINE - CAP  # no wait is longer than the cap
    if not trial.expect("never: waited", f"more than {least:g} s", f"{clock:.1f} s", clock > least, EARLY):
        return
    keys = len({one.key.partition("/")[2] for user in users.values() for one in user.tries[:1]})
    if not trial.expect("keys of all requests", f"{len(users)}", keys, keys == len(users), SHARED):
        return
    # A request that was computed twice has two names; the one that an earlier trial's user left may still run.
    ids = [id for step in trial.steps(MODEL) for id in step.ids if id in gateway.ids]
    count, wanted = len({*ids}), len(users) - len(ENDS)
    trial.expect("requests that the server computed", f"{wanted}", count, count == wanted, KEY)
    most = LONG + sum(len(words) for name, words in asked.items() if name not in ("left", *ENDS))
    trial.expect("tokens that the server made", f"less than {most}", len(ids), len(ids) < most, LEFT)


def judged(trial, name, user, end, words):
    """What one user's client did, as the gateway saw it: whether each expectation holds."""
    tries, seen = len(user.tries), len(user.shown)
    if name == "wrong":
        yield trial.expect(f"{name}: tries", "1", tries, tries == 1, BAD)
    elif name in ENDS:
        clock, most = f"{user.clock:.1f} s", 0 if name == "too-late" else DEADLINE
        yield trial.expect(f"{name}: waited", f"at most {most} s", clock, user.clock <= most, LATE)
    else:
        yield trial.expect(f"{name}: tries", f"more than {len(user.script)}", tries, tries > len(user.script), AGAIN)
        for act, (one, other) in zip(user.script, pairwise(user.tries), strict=False):
            waited, least = other.at - one.at, act.retry_after or 0
            yield trial.expect(f"{name}: next try", f"after {least} s", f"{waited:.1f} s", waited >= least, SOON)
        wanted = [f"{words[number % len(words)]} " for number in range(user.leaves or len(words))]
        yield trial.expect(
            f"{name}: tokens shown", f"{len(wanted)}", seen, user.shown == wanted, LEFT if user.leaves else TOKENS
        )
    wanted = ENDS.get(name, "left" if user.leaves else "answered")
    yield trial.expect(f"{name}: ask returns", wanted, end, end == wanted, WORD)


def judge_waits(trial, tries):
    """The waits of clients that were refused at the same moments, without a word of when to come back."""
    waits = [[other.at - one.at for one, other in pairwise(each)][:REFUSALS] for each in tries]
    first, last = (sum(each[at] for each in waits) / HERD for at in (0, -1))
    longest, moments = max(map(max, waits)), len({round(each[0], 3) for each in waits})
    return (
        trial.expect("the longest wait", f"at most {CAP:g} s", f"{longest:.1f} s", longest <= CAP, CAPPED)
        and trial.expect("moments of the first return", f"{HERD}", moments, moments >= HERD - 1, HERDED)
        and trial.expect(
            "mean of the first and last waits", "growing", f"{first:.1f}, {last:.1f} s", last > 2 * first, GROWING
        )
    )
