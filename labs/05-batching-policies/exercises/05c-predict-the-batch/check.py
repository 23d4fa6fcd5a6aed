"""The learner's prediction against the step log, under both policies."""

from functools import cache

from labsched import scheduler
from labsched.counting import CountingEngine
from labsched.kv_budget import KVBudget
from labsched.policy import Policy
from labsched.replay.counted_time import counted_arrivals
from labsched.replay.player import Replay

MODEL, BLOCKS, BLOCK_SIZE = "tensorrt_llm", 8, 32
POLICY, NO_EVICT, UTILIZATION = "batch_scheduler_policy", "guaranteed_no_evict", "max_utilization"
FULL = 0.4  # of the requests
LONGEST, STEP_TOKENS = 5000, 10_000  # steps, because some mistakes go on for ever; tokens of a step: enough for all
OTHER = "the preemptions are not those of the server: play rules 1 to 3 once for each step, in their order."
MEAN = "the preemptions are right, the mean batch is not: play rules 1 to 3 once for each step, in their order."


class NoSpareBlocks(scheduler.Scheduler):
    """Keeps no block free for the running requests to grow into."""

    def reserve(self):
        return 0


class SpareForTheNewcomer(scheduler.Scheduler):
    """Keeps a block free for the request that joins, too."""

    def reserve(self):
        return len(self.running) + 1


class SpareWhereAllIsPromised(scheduler.Scheduler):
    """Keeps a block free for each running request, under guaranteed_no_evict too."""

    def reserve(self):
        return len(self.running)


class NoNextToken(scheduler.Scheduler):
    """Counts no block for a request's next token."""

    def __init__(self, engine, kv, *rest):
        super().__init__(engine, WithoutTheNext(kv.blocks, kv.block_size), *rest)


class WithoutTheNext(KVBudget):
    """Counts blocks for one token less than it is asked about."""

    def needed(self, tokens):
        return super().needed(tokens - 1)


class StartsOver(scheduler.Scheduler):
    """Drops the tokens of a request that it preempts."""

    def apply(self, plan):
        refused = super().apply(plan)
        for request in plan.victims:
            request.output.clear()
        return refused


class ToTheEndOfTheQueue(scheduler.Scheduler):
    """Puts preempted requests behind all that wait."""

    def line(self):
        preempted = [request for request in self.waiting if request.output]  # the newest first
        return [*(request for request in self.waiting if not request.output), *reversed(preempted)]


class FirstIsPreempted(scheduler.Scheduler):
    """Preempts the request that has run for the longest time."""

    def victim(self):
        return self.running[0]


class OneJoinsAStep(scheduler.Scheduler):
    """Lets one request join in a step, whatever else fits."""

    @property
    def places(self):
        return min(1, super().places)


LATE = "a step late"
LIKELY = {
    LATE: "rule 3: a request leaves with the step of its last token.",
    NoNextToken: "rule 2: a request needs the blocks for its tokens and its next one; you count the tokens alone.",
    FirstIsPreempted: "rule 1: the last of the running requests is preempted, and you take the first.",
    SpareForTheNewcomer: "rule 2: one block for each running request stays free, and none for the one that joins.",
    NoSpareBlocks: "rule 2: beside what all need, one block for each running request must stay free when a request "
    "joins.",
    StartsOver: "rule 1: a preempted request keeps the tokens that it has, and yours starts over.",
    ToTheEndOfTheQueue: "rule 1: a preempted request goes to the head of the queue, and yours to its end.",
    OneJoinsAStep: "rule 2: requests join until one does not fit, and yours join one at a time.",
}
# Joining one at a time and leaving one step late make nearly the same numbers: few loads tell the two apart.
SOON_ALIKE = (OneJoinsAStep,)
PROMISED = (LATE, SpareWhereAllIsPromised)


def check(trial):
    lengths = lengths_of(trial.rng)
    requests = [([trial.rng.randint(5, 2000) for _ in range(prompt)], answer) for prompt, answer in lengths]
    predicted = {
        p: trial.call("predict.py", "predict", BLOCKS, BLOCK_SIZE, lengths, p) for p in (NO_EVICT, UTILIZATION)
    }
    numbers = all(
        isinstance(p, list) and len(p) == 2 and all(isinstance(n, int | float) for n in p) for p in predicted.values()
    )
    trial.expect(
        "predict returns",
        "two numbers",
        predicted[NO_EVICT],
        numbers,
        "predict returns two numbers: the mean batch and the preemptions.",
    )
    if not numbers:
        return
    figures = measured(trial, requests)
    compare(
        trial,
        f"mean batch, {NO_EVICT}",
        predicted[NO_EVICT][0],
        figures[NO_EVICT][0],
        "guaranteed_no_evict runs another batch: a request joins when the blocks of its whole prompt and output are "
        "not promised to others yet.",
    )
    compare(
        trial,
        f"preemptions, {NO_EVICT}",
        predicted[NO_EVICT][1],
        0,
        "guaranteed_no_evict never preempts a request: that is what it guarantees.",
    )
    mean, preemptions = figures[UTILIZATION]
    preempts = trial.expect(
        f"preemptions, {UTILIZATION}",
        "some",
        predicted[UTILIZATION][1],
        predicted[UTILIZATION][1] > 0,
        "max_utilization preempts in this cache, but you predict that it does not: under it a request joins with the "
        "blocks of its prompt alone.",
    )
    if not preempts:
        return
    mistake = likely(lengths, *predicted[UTILIZATION])
    name = f"preemptions, {UTILIZATION}"
    if compare(trial, name, predicted[UTILIZATION][1], preemptions, mistake or OTHER):
        compare(trial, f"mean batch, {UTILIZATION}", predicted[UTILIZATION][0], mean, mistake or MEAN)


def lengths_of(rng):
    """Prompts and answers on which each likely mistake comes to other numbers than the rules.

    Two mistakes come to the same numbers only if one of them is ``SOON_ALIKE``.
    """
    while True:
        lengths = tuple(request_of(rng) for _ in range(12))
        if told_apart(lengths):
            return lengths


def request_of(rng):
    """A prompt and an answer, which often fill their last block: there one token more is a block more."""
    prompt, answer = rng.randint(20, 60), rng.randint(40, 80)
    if rng.random() < FULL:
        answer = rng.choice([tokens for tokens in range(40, 81) if (prompt + tokens) % BLOCK_SIZE == 0])
    return prompt, answer


def told_apart(lengths):
    """Whether they are such ones. Those mistakes are played first that few lengths tell from the rules."""
    promised = played(lengths, scheduler.Scheduler, Policy.GUARANTEED_NO_EVICT)
    if any(alike(promised, played(lengths, kind, Policy.GUARANTEED_NO_EVICT)) for kind in PROMISED):
        return False
    before = []
    for kind in (scheduler.Scheduler, *LIKELY):
        figures = played(lengths, kind)
        if any(alike(figures, other) for other in (before[:1] if kind in SOON_ALIKE else before)):
            return False
        before.append(figures)
    return True


def likely(lengths, mean, preemptions):
    """The sentence of the mistake that comes to the same numbers; "" if none does, or if several do."""
    found = [words for kind, words in LIKELY.items() if alike(played(lengths, kind), (mean, preemptions))]
    return found[0] if len(found) == 1 else ""


@cache
def played(lengths, kind, policy=Policy.MAX_UTILIZATION):
    """Mean batch and preemptions under a policy, by a scheduler of this class."""
    if kind == LATE:
        kind, lengths = scheduler.Scheduler, [(prompt, answer + 1) for prompt, answer in lengths]
    engine = CountingEngine(STEP_TOKENS)
    engine.scheduler = kind(engine, KVBudget(BLOCKS, BLOCK_SIZE), policy, len(lengths), False)
    replay = Replay(engine.scheduler, counted_arrivals(lengths, [0.0] * len(lengths)))
    while not replay.over and len(replay.steps) <= LONGEST:
        replay.advance()
    steps = replay.steps
    return sum(step.batch for step in steps) / len(steps), sum(len(step.evicted) for step in steps)


def measured(trial, requests):
    """Mean batch and preemptions of the server under each policy: the one that it has now, then the other."""
    figures = {}
    for policy in sorted((NO_EVICT, UTILIZATION), key=lambda policy: policy != trial.parameters(MODEL)[POLICY]):
        if policy != trial.parameters(MODEL)[POLICY]:
            trial.load_with(MODEL, **{POLICY: policy, f"asked_{POLICY}": policy})
        steps = trial.send_queued(requests)[1]
        figures[policy] = sum(step.batch for step in steps) / len(steps), sum(len(s.evicted) for s in steps)
    return figures


def compare(trial, name, predicted, measured, sentence):
    return trial.expect(
        name, f"{measured:.2f}", f"{predicted:.2f}", same(predicted, measured), sentence, predicted=True
    )


def alike(one, other):
    """Whether two pairs of a mean batch and a number of preemptions are the same."""
    return one[1] == other[1] and same(one[0], other[0])


def same(one, other):
    return abs(one - other) < 0.01
