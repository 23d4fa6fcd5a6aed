"""Long prompts and short ones in a small cache: how much of what is computed is lost, and how many requests run."""

from labkit.evidence.names import letters

BLOCKS, BUDGET, SIZE = 16, 64, 32
LOST, MEAN = 500, 2.1
THRASHES = (
    "the cache thrashes: a request joins because the first piece of its prompt fits, and is preempted before the rest "
    "is computed."
)


def check(trial):
    rng = trial.rng
    lengths = [(rng.randint(165, 190), rng.randint(40, 60)) for _ in range(5)]  # a prompt is six blocks
    lengths += [(rng.randint(325, 340), rng.randint(40, 60)) for _ in range(2)]  # eleven
    lengths += [(rng.randint(10, 30), rng.randint(30, 50)) for _ in range(10)]
    requests = [([rng.randint(5, 1200) for _ in range(prompt)], answer) for prompt, answer in lengths]
    records, steps = trial.send_queued(requests)
    blocks = steps[0].more["kv_blocks"]
    trial.expect(
        "blocks of the KV cache", f"{BLOCKS}", blocks, blocks == BLOCKS, "the cache must stay as large as it is."
    )
    largest = max(sum(step.tokens) for step in steps)
    trial.expect(
        "tokens of the largest step",
        f"at most {BUDGET}",
        largest,
        largest <= BUDGET,
        "a step computes more than 64 tokens: the pieces must stay as small as they are.",
    )
    lengths_by_id = {record.id: prompt for record, (prompt, _) in zip(records, lengths, strict=True)}
    early = joined_without_room(steps, lengths_by_id, blocks)
    count = f"{len(early)}\n{early[0]}" if early else "0"
    trial.expect("joined before the whole prompt fitted", "0", count, not early, THRASHES)
    lost, preemptions = lost_tokens(steps), sum(len(step.evicted) for step in steps)
    found = f"{lost:,} in {preemptions} preemptions"
    trial.expect("computed tokens that were lost", f"at most {LOST:,}", found, lost <= LOST, THRASHES)
    mean = sum(step.batch for step in steps) / len(steps)
    trial.expect(
        "requests in a step on average",
        f"at least {MEAN}",
        f"{mean:.2f}",
        mean >= MEAN,
        "hardly any request runs: short requests wait although the cache has room for them.",
    )
    whole = sum(record.tokens == answer for record, (_, answer) in zip(records, lengths, strict=True))
    trial.expect("answered whole", f"{len(lengths)}", whole, whole == len(lengths), "an answer has too few tokens.")


def joined_without_room(steps, prompts, blocks):
    """A line for each request that joined a batch without free blocks for all of its tokens."""
    names, computed, made, found = letters(prompts), {}, dict.fromkeys(prompts, 0), []
    for number, step in enumerate(steps, 1):
        for id in step.evicted:
            computed.pop(id, None)
        cached = step.found
        after = {id: count + known for id, count, known in zip(step.ids, step.tokens, cached, strict=True)}
        used = sum(-(-(tokens + after.get(id, 0)) // SIZE) for id, tokens in computed.items())
        for id in [id for id in step.ids if id not in computed]:
            free, need = blocks - used, -(-(prompts[id] + made[id]) // SIZE)
            if need > free:
                what = f"{names[id]} joins, {prompts[id] + made[id]} tokens"
                found.append(f"step {number}: {what} need {need} blocks, {free} are free")
            used += -(-after[id] // SIZE)
        for id, new in zip(step.ids, step.made, strict=True):
            computed[id] = computed.get(id, 0) + after[id]
            made[id] += new
        for id in step.ended:
            computed.pop(id, None)
    return found


def lost_tokens(steps):
    """What preempted requests had in the cache: computed, or found there by a prefix cache."""
    cached, lost = {}, 0
    for step in steps:
        lost += sum(cached.pop(id) for id in step.evicted)
        found = step.found
        for id, tokens, known in zip(step.ids, step.tokens, found, strict=True):
            cached[id] = cached.get(id, 0) + tokens + known
        for id in step.ended:
            cached.pop(id, None)
    return lost
