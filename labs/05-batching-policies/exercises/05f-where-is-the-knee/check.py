"""The learner's knee, replayed on the server just below it and just above: which requests are within the limits?

Time is counted from the server's steps, so that a busy machine changes nothing of it.
"""

from dataclasses import replace
from itertools import accumulate, pairwise

from labkit.stats import Slo
from labsched.counted_time import ComputedStep, Cost, good_share, latencies, replay_counted

MODEL, REQUESTS, SLOTS = "tensorrt_llm", 60, 8
GOOD = 0.9  # of the requests
BEYOND = 4  # requests are beyond each limit, near the knee: so it lies where both are kept
NEAR = 0.05  # the knee may lie so far from the learner's
HALVINGS, HIGHEST = 14, 100.0  # requests per second
SAME = 0.004  # two knees that are found by halving differ by less
LOW = "a higher rate is within the limits too: requests that run together share the fixed cost of their steps."
HIGH = "at that rate too many first tokens are late: long before the throughput is at its peak, requests queue."
LIKELY = {
    "TTFT alone": "you count the first tokens alone: TPOT has a limit too, and a joining prompt delays all that run.",
    "TPOT alone": "you count TPOT alone: TTFT has a limit too, and it counts from the arrival.",
    "even gaps": "requests do not come in equal gaps: a crowd has to wait, however low the mean rate is.",
    "free prompts": "prompts take time too: while one is computed, every running request waits for it.",
    "the mean": "a mean within the limit hides the late ones: count the requests that are within both limits.",
}


def check(trial):
    load = Load(trial.parameters(MODEL), trial.rng)
    while not load.tells_apart():
        load = Load(trial.parameters(MODEL), trial.rng)
    said = trial.call("predict.py", "knee", load.recording)
    number = isinstance(said, int | float) and said > 0
    if not trial.expect("knee returns", "a rate", said, number, "knee returns a number: requests per second."):
        return
    for times, enough in ((1 - NEAR, True), (1 + NEAR, False)):
        good, late, slow = served(trial, load, times * said)
        trial.expect(
            f"within the limits at {times:.2f} of your {said:.2f} requests per second",
            f"at least {GOOD:.0%}" if enough else f"less than {GOOD:.0%}",
            f"{good:.0%}; {late} of {REQUESTS} beyond TTFT, {slow} beyond TPOT",
            (good >= GOOD) == enough,
            LOW if not enough else "" if good >= GOOD else load.likely(said),
        )


class Load:
    """A recording, and what its knee would be with each likely mistake, by the replay of the server's scheduler."""

    def __init__(self, words, rng):
        self.words, self.known = words, {}
        self.lengths = [(rng.randint(40, 160), rng.randint(10, 40)) for _ in range(REQUESTS)]
        self.gaps = gaps_of(rng)
        self.cost = cost = Cost(rng.uniform(15, 30), rng.uniform(1, 3), rng.uniform(0.3, 0.6))
        each = sum(answer for _, answer in self.lengths) / REQUESTS * cost.of("d" * SLOTS, [1] * SLOTS)
        prompts = cost.prompt * sum(prompt for prompt, _ in self.lengths) / REQUESTS
        took = [(cost.step + cost.decode) * answer + cost.prompt * prompt for prompt, answer in self.lengths]
        # Requests per second: one at a time; and in all slots, if prompts took no time.
        self.alone, self.most = 1000 * REQUESTS / sum(took), 1000 * SLOTS / each
        self.near = rng.uniform(0.5, 0.8) * 1000 / (each / SLOTS + prompts)  # of the most that the slots can serve
        ttft, tpot = (sorted(times)[-BEYOND] for times in zip(*self.replayed(self.near)[1], strict=True))
        self.slo = Slo(ttft=int(ttft), tpot=int(10 * tpot) / 10)
        self.knees = {}

    def tells_apart(self):
        """Whether each mistake has a knee of its own, which is too high; and one at a time one that is too low."""
        ttft, tpot = replace(self.slo, tpot=None), replace(self.slo, ttft=None)
        if min(self.share(self.near * (1 + 2 * NEAR), slo=slo) for slo in (ttft, tpot)) < GOOD:
            return False  # one of the limits alone decides
        if self.share(self.near) >= GOOD:
            return False
        if min(self.share((1 - NEAR) * self.alone), self.share((1 + NEAR) * self.alone)) < GOOD:
            return False
        even, free = [1.0] * REQUESTS, Cost(self.cost.step, self.cost.decode, 0.0)
        knee = knee_where(lambda rate: self.share(rate) >= GOOD)
        self.knees = {
            "TTFT alone": knee_where(lambda rate: self.share(rate, slo=ttft) >= GOOD),
            "TPOT alone": knee_where(lambda rate: self.share(rate, slo=tpot) >= GOOD),
            "even gaps": knee_where(lambda rate: self.share(rate, gaps=even) >= GOOD),
            "free prompts": knee_where(lambda rate: self.share(rate, cost=free) >= GOOD),
            "the mean": knee_where(
                lambda rate: sum(ttft for ttft, _ in self.replayed(rate)[1]) <= REQUESTS * self.slo.ttft
            ),
        }
        others = sorted((*self.knees.values(), self.most))
        return (
            self.share((1 - NEAR) * knee) >= GOOD > self.share((1 + NEAR) * knee)
            and all(self.share((1 - NEAR) * other) < GOOD for other in others)
            and all(high > low * (1 + 2 * SAME) for low, high in pairwise(others))
        )

    @property
    def recording(self):
        return {
            "slots": SLOTS,
            "requests": self.lengths,
            "gaps": self.gaps,
            "step_ms": self.cost.step,
            "decode_ms": self.cost.decode,
            "prompt_token_ms": self.cost.prompt,
            "ttft_ms": self.slo.ttft,
            "tpot_ms": self.slo.tpot,
        }

    def times(self, rate, gaps=None):
        """When each request arrives, in milliseconds."""
        return [1000 * at / rate for at in accumulate(gaps or self.gaps)]

    def replayed(self, rate, gaps=None, cost=None):
        """The replay at a rate. It is the same whatever the limits are, so each is computed once."""
        if gaps or cost:
            return replay_counted(self.words, self.lengths, self.times(rate, gaps), cost or self.cost)
        if rate not in self.known:
            self.known[rate] = replay_counted(self.words, self.lengths, self.times(rate), self.cost)
        return self.known[rate]

    def share(self, rate, slo=None, **other):
        return good_share(self.replayed(rate, **other)[1], slo or self.slo)

    def likely(self, said):
        """The mistake whose knee is the one that was said, which is too high."""
        off = {name: abs(value / said - 1) for name, value in self.knees.items()}
        nearest = min(off, key=off.get)
        return LIKELY[nearest] if off[nearest] < SAME else HIGH


def served(trial, load, rate):
    """The share of the requests that the server answers within the limits, and how many are beyond each of them."""
    after, _ = load.replayed(rate)
    requests = [([trial.rng.randint(5, 2000) for _ in range(prompt)], answer) for prompt, answer in load.lengths]
    first = after.count(0)
    records, steps = trial.send_queued(requests[:first], list(zip(after, requests, strict=True))[first:])
    ids = [record.id for record in records]
    found = latencies([ComputedStep.of(step) for step in steps], ids, load.times(rate), load.cost)
    late, slow = (sum(ttft > load.slo.ttft for ttft, _ in found), sum(tpot > load.slo.tpot for _, tpot in found))
    return good_share(found, load.slo), late, slow


def knee_where(within):
    low, high = 0.0, HIGHEST
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if within(middle) else (low, middle)
    return low


def gaps_of(rng):
    """The time before each request, 1 on average: some come alone, and some as a crowd."""
    gaps = []
    while len(gaps) < REQUESTS:
        crowd = rng.choice((1, 1, 1, 2, 7, 8))
        gaps += [crowd * rng.uniform(0.7, 1.3), *(0.01 * rng.random() for _ in range(crowd - 1))]
    mean = sum(gaps[:REQUESTS]) / REQUESTS
    return [gap / mean for gap in gaps[:REQUESTS]]
