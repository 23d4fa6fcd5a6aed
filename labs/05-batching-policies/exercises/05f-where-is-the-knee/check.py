"""The learner's knee, replayed on the server just below it and just above: which requests are within the limits?

Time is counted from the server's steps, so that a busy machine changes nothing of it.
"""

from dataclasses import replace
from itertools import accumulate, pairwise

from labsched.costs import StepCosts, StepCounts
from labsched.replay.counted_time import Latency, good_share, latencies, replay_counted, time_steps
from labsched.replay.slo import Slo

MODEL, REQUESTS, SLOTS = "tensorrt_llm", 60, 8
GOOD = 0.9  # of the requests
BEYOND = 4  # requests are beyond each limit, near the knee: so it lies where both are kept
NEAR = 0.02  # the knee may lie so far from the learner's
HALVINGS, HIGHEST = 14, 100.0  # requests per second
SAME = 0.004  # two knees that are found by halving differ by less
BELOW = [share / 20 for share in range(1, 20)]  # of the knee: there all rates are within the limits
LOW = "a higher rate is within the limits too: requests that run together share the fixed cost of their steps."
HIGH = "at that rate too many first tokens are late: long before the throughput is at its peak, requests queue."
LIKELY = {
    "TTFT alone": "you count the first tokens alone: TPOT has a limit too, and a joining prompt delays all that run.",
    "TPOT alone": "you count TPOT alone: TTFT has a limit too, and it counts from the arrival.",
    "even gaps": "requests do not come in equal gaps: a crowd has to wait, however low the mean rate is.",
    "free prompts": "prompts take time too: while one is computed, every running request waits for it.",
    "a step late": "the step in which a request joins makes its first token, and yours comes a step later.",
    "free decodes": "a step takes more for each request that decodes in it.",
    "joining decodes": "a request that joins does not decode in that step: it takes the time of its prompt alone.",
    "a slot empty": "a waiting request takes the last free slot, too: yours leaves it empty.",
    "all at once": "no more requests run at a time than there are slots: the others queue.",
    "the mean": "a mean within the limit hides the late ones: count the requests that are within both limits.",
}


def check(trial):
    load = Load(trial.parameters(MODEL), trial.rng)
    while not load.tells_apart():
        load = Load(trial.parameters(MODEL), trial.rng)
    said = trial.call("predict.py", "knee", load.recording)
    number = isinstance(said, int | float) and said > 0
    if not trial.expect(
        "knee returns", "a rate", str(said)[:60], number, "knee returns a number: requests per second."
    ):
        return
    for times, enough in ((1 - NEAR, True), (1 + NEAR, False)):
        good, late, slow = served(trial, load, times * said)
        trial.expect(
            f"within the limits at {times:.2f} of your {said:.3g} requests per second",
            f"at least {GOOD:.0%}" if enough else f"less than {GOOD:.0%}",
            f"{good:.0%}; {late} of {REQUESTS} beyond TTFT, {slow} beyond TPOT",
            (good >= GOOD) == enough,
            load.likely(said) or (HIGH if enough else LOW),
        )


class Load:
    """A recording, and what its knee would be with each likely mistake, by the replay of the server's scheduler."""

    def __init__(self, words, rng):
        self.words = words
        self.lengths = [(rng.randint(40, 160), rng.randint(10, 40)) for _ in range(REQUESTS)]
        self.gaps = gaps_of(rng)
        self.cost = cost = StepCosts(step=rng.uniform(15, 30), decoding=rng.uniform(2, 5), token=rng.uniform(0.3, 0.6))
        each = sum(answer for _, answer in self.lengths) / REQUESTS * cost.seconds(StepCounts(decoding=SLOTS))
        prompts = cost.token * sum(prompt for prompt, _ in self.lengths) / REQUESTS
        took = [(cost.step + cost.decoding) * answer + cost.token * prompt for prompt, answer in self.lengths]
        # Requests per second: one at a time; and in all slots, if prompts took no time.
        self.alone, self.most = 1000 * REQUESTS / sum(took), 1000 * SLOTS / each
        self.near = rng.uniform(0.5, 0.8) * 1000 / (each / SLOTS + prompts)  # of the most that the slots can serve
        ttft, tpot = (sorted(times)[-BEYOND] for times in zip(*self.played(self.near), strict=True))
        self.slo = Slo(ttft=int(ttft), tpot=int(10 * tpot) / 10)
        self.knees = {}

    def tells_apart(self):
        """Whether the limits are kept up to one rate and never beyond it, and each mistake has another such rate."""
        ttft, tpot = replace(self.slo, tpot=None), replace(self.slo, ttft=None)
        if min(self.share(self.near * (1 + 2 * NEAR), slo=slo) for slo in (ttft, tpot)) < GOOD:
            return False  # one of the limits alone decides
        if self.share(self.near) >= GOOD:
            return False
        self.knee = knee = self.knee_of()
        if not knee or min(self.share(part * knee) for part in (*BELOW, 1 - NEAR)) < GOOD:
            return False  # too many are beyond a limit at a lower rate, too
        if max(self.share(times * knee) for times in (1 + NEAR, 1.1, 1.25, 1.5, 2, 4)) >= GOOD:
            return False
        self.knees = {
            "TTFT alone": self.knee_of(slo=ttft),
            "TPOT alone": self.knee_of(slo=tpot),
            "even gaps": self.knee_of(gaps=[1.0] * REQUESTS),
            "free prompts": self.knee_of(cost=replace(self.cost, token=0.0)),
            "free decodes": self.knee_of(cost=replace(self.cost, decoding=0.0)),
            "a step late": self.knee_of(late=1),
            "joining decodes": self.knee_of(joining=1),
            "a slot empty": self.knee_of(slots=SLOTS - 1),
            "all at once": self.knee_of(slots=REQUESTS),
            "the mean": knee_where(lambda rate: sum(ttft for ttft, _ in self.played(rate)) <= REQUESTS * self.slo.ttft),
        }
        others = sorted((*self.knees.values(), self.most, self.alone))
        return all(abs(other / knee - 1) > 2 * NEAR for other in others) and all(
            high > low * (1 + 2 * SAME) for low, high in pairwise(others)
        )

    @property
    def recording(self):
        return {
            "slots": SLOTS,
            "requests": self.lengths,
            "gaps": self.gaps,
            "step_ms": self.cost.step,
            "decode_ms": self.cost.decoding,
            "prompt_token_ms": self.cost.token,
            "ttft_ms": self.slo.ttft,
            "tpot_ms": self.slo.tpot,
        }

    def times(self, rate, gaps=None):
        """When each request arrives, in milliseconds."""
        return [1000 * at / rate for at in accumulate(gaps or self.gaps)]

    def played(self, rate, gaps=None, cost=None, slots=SLOTS, late=0, joining=0):
        """TTFT and TPOT of each request at a rate, by the task's rules: first tokens come ``late`` steps later.

        ``joining``: 1 counts a request that joins as one that decodes.
        """
        cost, arrived = cost or self.cost, self.times(rate, gaps)
        waiting, running, now = list(range(REQUESTS)), [], 0.0
        steps = [[] for _ in arrived]  # the end of each step in which a request runs
        while waiting or running:
            now = now if running else max(now, arrived[waiting[0]])
            new = [n for n in waiting[: slots - len(running)] if arrived[n] <= now]
            waiting = waiting[len(new) :]
            prompts = sum(self.lengths[n][0] for n in new)
            now += cost.step + cost.decoding * (len(running) + joining * len(new)) + cost.token * prompts
            running += new
            for n in running:
                steps[n].append(now)
            running = [n for n in running if len(steps[n]) < self.lengths[n][1] + late]
        tokens = [ends[late:] for ends in steps]
        return [
            (ends[0] - at, (ends[-1] - ends[0]) / max(1, len(ends) - 1))
            for at, ends in zip(arrived, tokens, strict=True)
        ]

    def share(self, rate, slo=None, **other):
        return good_share([Latency(*times) for times in self.played(rate, **other)], slo or self.slo)

    def knee_of(self, **other):
        return knee_where(lambda rate: self.share(rate, **other) >= GOOD)

    def likely(self, said):
        """The sentence of the mistake whose knee is the one that was said; "" if there is none."""
        off = {name: abs(value / said - 1) for name, value in self.knees.items()}
        nearest = min(off, key=off.get)
        return LIKELY[nearest] if off[nearest] < SAME else ""


def served(trial, load, rate):
    """The share of the requests that the server answers within the limits, and how many are beyond each of them."""
    after, _ = replay_counted(load.words, load.lengths, load.times(rate), load.cost)
    requests = [([trial.rng.randint(5, 2000) for _ in range(prompt)], answer) for prompt, answer in load.lengths]
    first = after.count(0)
    records, steps = trial.send_queued(requests[:first], list(zip(after, requests, strict=True))[first:])
    arrived = dict(zip([record.id for record in records], load.times(rate), strict=True))
    found = latencies(time_steps(steps, arrived, load.cost), arrived)
    late, slow = (sum(ttft > load.slo.ttft for ttft, _ in found), sum(tpot > load.slo.tpot for _, tpot in found))
    return good_share(found, load.slo), late, slow


def knee_where(within):
    low, high = 0.0, HIGHEST
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if within(middle) else (low, middle)
    return low


def gaps_of(rng):
    """The time before each request, 1 on average: some come alone, and some at once, as a crowd."""
    gaps = []
    while len(gaps) < REQUESTS:
        crowd = rng.choice((1, 1, 1, 2, 7, 8))
        gaps += [crowd * rng.uniform(0.7, 1.3), *[0.0] * (crowd - 1)]
    mean = sum(gaps[:REQUESTS]) / REQUESTS
    return [gap / mean for gap in gaps[:REQUESTS]]
