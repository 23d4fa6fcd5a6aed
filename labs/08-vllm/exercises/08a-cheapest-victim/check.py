"""The computed tokens of the learner's victims against those of the other requests in the batch, on fresh traces."""

from typing import NamedTuple

from labkit.evidence.names import letters

BLOCK = 32
OWN = (
    "the victim is still the request that was admitted last, however much of it was computed: this is vLLM's own rule."
)
OTHER = "a request was preempted while another had fewer computed tokens: prompt and answer both count."
WHOLE = (
    "a request was preempted while another had fewer computed tokens: of a prompt that goes in pieces, only the pieces "
    "that are done count."
)


class Preemption(NamedTuple):
    victims: tuple[str, ...]
    computed: dict[str, int]  # before the step, of each request in the batch, in order of admission
    tokens: dict[str, int]  # of prompt and answer

    def cheapest(self):
        return sum(sorted(self.computed.values())[: len(self.victims)])

    def last(self):
        return sum([*self.computed.values()][-len(self.victims) :])

    def fewest_tokens(self):
        least = sorted(self.computed, key=self.tokens.get)[: len(self.victims)]
        return sum(self.computed[id] for id in least)

    def lost(self):
        return sum(self.computed[id] for id in self.victims)

    def blocks(self):
        """The blocks that all requests of the batch would need."""
        return sum(-(-tokens // BLOCK) for tokens in self.tokens.values())


def check(trial):
    rng = trial.rng
    lengths = []
    for _ in range(3):  # two short requests with long answers, then a long prompt
        lengths += [(rng.randint(20, 40), rng.randint(60, 100)) for _ in range(2)]
        lengths.append((rng.randint(200, 250), rng.randint(30, 60)))
    pair = pair_of(rng)
    # Its second request arrives when the first one has filled its five blocks but for a token.
    ran = [(lengths, *send(trial, lengths)), (pair, *send(trial, pair, 5 * BLOCK + 1 - pair[0][0]))]
    found = [
        one
        for sizes, records, steps in ran
        for one in preemptions(steps, {record.id: size[0] for record, size in zip(records, sizes, strict=True)})
    ]
    computed = sum(sum(step.tokens) for _, _, steps in ran for step in steps)
    again = computed - sum(prompt + answer - 1 for sizes, _, _ in ran for prompt, answer in sizes)
    least, last = sum(one.cheapest() for one in found), sum(one.last() for one in found)
    trial.expect(
        "preemptions", "some", len(found), bool(found), "no request was preempted: admission must stay vLLM's."
    )
    wrong = next((one for one in found if one.lost() > one.cheapest()), None)
    bound = f"at most {least:,} (the last admitted: {last:,})"
    shown = f"{again:,}\n{in_words(wrong)}" if wrong else f"{again:,}"
    trial.expect("tokens computed again", bound, shown, again <= least, cause(found))
    blocks = ran[0][2][0].more["kv_blocks"]
    needless = sum(one.blocks() <= blocks for one in found)
    trial.expect(
        "preemptions without need", "0", needless, needless == 0, "vLLM preempts only where a block is missing."
    )
    count = len(lengths) + len(pair)
    whole = sum(
        record.tokens == answer for sizes, records, _ in ran for record, (_, answer) in zip(records, sizes, strict=True)
    )
    trial.expect("answered whole", f"{count}", whole, whole == count, "a preempted request must come back.")


def pair_of(rng):
    """A request, and one whose prompt goes in two pieces: after the first it has more `num_tokens`, fewer computed."""
    return [(rng.randint(130, 150), rng.randint(50, 70)), (rng.randint(195, 220), rng.randint(20, 40))]


def send(trial, lengths, after=0):
    """Requests of these lengths; ``after``: steps before the last of them arrives."""
    requests = [([trial.rng.randint(5, 1200) for _ in range(prompt)], answer) for prompt, answer in lengths]
    return trial.send_queued(requests[:-1], [(after, requests[-1])]) if after else trial.send_queued(requests)


def cause(found):
    if all(one.lost() == one.last() for one in found):
        return OWN
    return WHOLE if all(one.lost() == one.fewest_tokens() for one in found) else OTHER


def in_words(preemption):
    """The victims of a preemption beside the requests that stayed, in words."""
    names = letters(preemption.computed)
    batch = ", ".join(f"{names[id]} {done} of {preemption.tokens[id]}" for id, done in preemption.computed.items())
    return f"computed when {', '.join(names[id] for id in preemption.victims)} was preempted: {batch}"


def preemptions(steps, prompts):
    """Every preemption, with the requests in the batch before it."""
    computed, made, found = {}, dict.fromkeys(prompts, 0), []
    for step in steps:
        if victims := step.evicted:
            found.append(Preemption(tuple(victims), dict(computed), {id: prompts[id] + made[id] for id in computed}))
        for id in victims or ():
            del computed[id]
        for id, tokens, new in zip(step.ids, step.tokens, step.made, strict=True):
            computed[id] = computed.get(id, 0) + tokens
            made[id] += new
        for id in step.ended:
            computed.pop(id, None)
    return found
