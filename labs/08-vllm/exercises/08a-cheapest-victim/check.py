"""What the learner's victims had computed, against the other requests in the batch, on traces that differ each time."""

from typing import NamedTuple

OWN = (
    "the victim is still the request that was admitted last, whatever has been computed of it: this is vLLM's own rule."
)
OTHER = "a request was preempted while another had fewer computed tokens: prompt and answer both count."
WHOLE = (
    "a request was preempted while another had fewer computed tokens: of a prompt that goes in pieces, only the pieces "
    "that are done count."
)


class Preemption(NamedTuple):
    victims: tuple[str, ...]
    computed: dict[str, int]  # before the step, of each request in the batch, in order of admission
    blocks: int  # that all of them would need

    def cheapest(self):
        return sum(sorted(self.computed.values())[: len(self.victims)])

    def last(self):
        return sum([*self.computed.values()][-len(self.victims) :])

    def lost(self):
        return sum(self.computed[id] for id in self.victims)


def check(trial):
    rng = trial.rng
    lengths = []
    for _ in range(3):  # two short requests with long answers, then a long prompt
        lengths += [(rng.randint(20, 40), rng.randint(60, 100)) for _ in range(2)]
        lengths.append((rng.randint(200, 250), rng.randint(30, 60)))
    requests = [([rng.randint(5, 1200) for _ in range(prompt)], answer) for prompt, answer in lengths]
    records, steps = trial.send_queued(requests)
    found = preemptions(steps, {record.id: prompt for record, (prompt, _) in zip(records, lengths, strict=True)})
    computed = sum(sum(step.more["tokens"]) for step in steps)
    again = computed - sum(prompt + answer - 1 for prompt, answer in lengths)
    least, last = sum(one.cheapest() for one in found), sum(one.last() for one in found)
    trial.expect(
        "preemptions", "some", len(found), bool(found), "no request was preempted: admission must stay vLLM's."
    )
    own = all(one.lost() == one.last() for one in found)
    bound = f"at most {least:,} (the last admitted: {last:,})"
    trial.expect("tokens computed again", bound, f"{again:,}", again <= least, OWN if own else OTHER)
    blocks = steps[0].more["kv_blocks"]
    needless = sum(one.blocks <= blocks for one in found)
    trial.expect(
        "preemptions without need", "0", needless, needless == 0, "vLLM preempts only where a block is missing."
    )
    whole = sum(record.tokens == answer for record, (_, answer) in zip(records, lengths, strict=True))
    trial.expect(
        "answered whole", f"{len(lengths)}", whole, whole == len(lengths), "a preempted request must come back."
    )


def preemptions(steps, prompts):
    """Every step that preempts, with what stood in the batch before it."""
    computed, made, found = {}, dict.fromkeys(prompts, 0), []
    for step in steps:
        if victims := step.more.get("evicted"):
            blocks = sum(-(-(prompts[id] + made[id]) // 32) for id in computed)
            found.append(Preemption(tuple(victims), dict(computed), blocks))
        for id in victims or ():
            del computed[id]
        for id, tokens, new in zip(step.ids, step.more["tokens"], step.more["made"], strict=True):
            computed[id] = computed.get(id, 0) + tokens
            made[id] += new
        for id in step.more.get("ended", ()):
            computed.pop(id, None)
    return found
