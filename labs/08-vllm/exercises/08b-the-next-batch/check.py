"""The learner's next batch against vLLM's, step by step: `predict` is asked before the step is computed."""

from labkit.evidence.names import letters

BLOCK = 32
QUEUE = "a waiting request is missing in your batch: what is left of the budget goes to the queue, in its order."
BUDGET = "your batch has more tokens than the budget: a prompt that does not fit goes in pieces."
VICTIM = "you leave out another request than vLLM: when a block is missing, the last one of `running` is preempted."
BLOCKS = "a request of your batch has no block for its next tokens: vLLM preempts when none is free."
HEAD = "a request joins that is not first in the queue: when the first one does not fit, vLLM admits none."
WHOLE = "a request joins in your batch, but not in vLLM's: all of its tokens must fit into the free blocks."
PLACES = "your batch has more requests than `max_num_seqs`: a waiting request joins only where a place is free."
AFTER = "a request joins in a step that preempts another: in such a step vLLM admits none, whatever room there is."
TOKENS = "the batch is right, but not the tokens: each request gets what is left to compute of it, within the budget."


def check(trial):
    rng = trial.rng
    lengths = lengths_of(rng)
    rows = [([rng.randint(5, 1200) for _ in range(prompt)], answer) for prompt, answer in lengths]
    with trial.stepping(rows) as run:
        engine, right = Known(trial.settings, run.records, lengths), 0
        while engine.busy:
            state = engine.state()
            said = trial.call("predict.py", "predict", state)
            found = engine.read(run.step())
            if said != found:
                names = letters(engine.tokens)
                trial.expect(
                    f"step {engine.steps}: {shown(state, names)}",
                    in_words(found, names),
                    in_words(said, names),
                    False,
                    sentence(state, found, said),
                    predicted=True,
                )
                return
            right += 1
            if quiet := engine.quiet():
                engine.read(run.step(quiet))
    trial.expect("batches as predicted", "all", f"{right} of {right}", True, "")


def lengths_of(rng):
    """Prompts and answers: three times four that fill the cache, one that fits where one was preempted, and others."""
    found = []
    for long in ((66, 96), (97, 110), (97, 110)):  # 97: more than two budgets
        found += [(rng.randint(50, 58), rng.randint(30, 40)) for _ in range(4)]  # two blocks each, soon three
        found.append((rng.randint(20, 30), rng.randint(8, 12)))
        found.append((rng.randint(*long), rng.randint(8, 16)))
        found += [(rng.randint(20, 30), rng.randint(8, 12)) for _ in range(2)]
    found += [(rng.randint(8, 16), rng.randint(8, 12)) for _ in range(6)]  # a block each: places run out before blocks
    return found


class Known:
    """vLLM's requests, as far as their lengths and the steps so far show."""

    def __init__(self, settings, records, lengths):
        self.settings, self.steps = settings, 0
        self.tokens = {record.id: prompt for record, (prompt, _) in zip(records, lengths, strict=True)}
        self.whole = {record.id: sum(pair) for record, pair in zip(records, lengths, strict=True)}
        self.computed, self.waiting = {}, list(self.tokens)

    @property
    def busy(self):
        return bool(self.computed or self.waiting)

    def state(self):
        blocks = int(self.settings["max_tokens_in_paged_kv_cache"]) // BLOCK
        used = sum(-(-computed // BLOCK) for computed in self.computed.values())
        return {
            "budget": int(self.settings["max_num_tokens"]),
            "max_num_seqs": int(self.settings["max_num_sequences"]),
            "block_size": BLOCK,
            "free_blocks": blocks - used,
            "running": [self._request(id) for id in self.computed],
            "waiting": [self._request(id) for id in self.waiting],
        }

    def _request(self, id):
        return {"id": id, "num_tokens": self.tokens[id], "num_computed_tokens": self.computed.get(id, 0)}

    def quiet(self):
        """The number of steps in which nothing can change: all requests decode within their blocks, and none ends."""
        if any(self.tokens[id] - computed != 1 for id, computed in self.computed.items()) or not self.computed:
            return 0
        return min(min(-computed % BLOCK, self.whole[id] - 1 - computed) for id, computed in self.computed.items())

    def read(self, steps):
        """Take over the new steps, and return the tokens of the last step by request."""
        for step in steps[self.steps :]:
            for id in step.evicted:
                del self.computed[id]
            for id, tokens, made in zip(step.ids, step.tokens, step.made, strict=True):
                self.computed[id] = self.computed.get(id, 0) + tokens
                self.tokens[id] += made
            for id in step.ended:
                self.computed.pop(id, None)
            self.waiting = list(step.waiting)
        self.steps = len(steps)
        return dict(zip(steps[-1].ids, steps[-1].tokens, strict=True))


def shown(state, names):
    """The state that `predict` was given, in one line."""
    running, waiting = (
        ", ".join(f"{names[one['id']]} {one['num_computed_tokens']} of {one['num_tokens']}" for one in state[key])
        or "none"
        for key in ("running", "waiting")
    )
    return f"{state['free_blocks']} blocks free, running {running}, waiting {waiting}"


def in_words(batch, names):
    """A batch in words, with the requests' names."""
    if not isinstance(batch, dict):
        return repr(batch)
    return ", ".join(f"{names.get(id, id)} {tokens}" for id, tokens in batch.items()) or "none"


def sentence(state, found, said):
    """What the first difference means."""
    if not isinstance(said, dict):
        return "predict returns a dict: the tokens of each request in the batch, by its id."
    running, waiting = ([request["id"] for request in state[key]] for key in ("running", "waiting"))
    extra, missing = said.keys() - found.keys(), found.keys() - said.keys()
    if missing & {*running}:
        return VICTIM
    if extra & {*running}:
        return BLOCKS
    if sum(said.values()) > state["budget"]:
        return BUDGET
    if extra - {*running, *waiting}:
        return "your batch names a request that is not there."
    if len(said) > state["max_num_seqs"]:
        return PLACES
    if extra and {*running} - found.keys() and sum(found.values()) < state["budget"]:
        return AFTER
    if extra:
        joined = [id for id in waiting if id in found]
        return WHOLE if waiting[len(joined)] in extra else HEAD
    return QUEUE if missing else TOKENS
