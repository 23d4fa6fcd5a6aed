"""Phase 2: prompts that begin alike. How much is computed without a cache, with one, and with a small one?"""

import random
import sys

from labkit.client import context, trtllm
from labkit.client.trtllm import EngineStream, steps_of
from labkit.evidence.records import Lane

SHARED, QUICK_SHARED = 480, 160  # tokens of an instruction
OWN, ANSWER = 24, 4  # tokens of each question, and of its answer
REQUESTS, QUICK_REQUESTS = 32, 8


def main() -> None:
    lab = context.load_context(sys.argv[1])
    rng = random.Random(6)
    length, count = (QUICK_SHARED, QUICK_REQUESTS) if lab.quick else (SHARED, REQUESTS)

    def ids(tokens):
        return [rng.randrange(5, 1200) for _ in range(tokens)]

    one, *several = [ids(length) for _ in range(9)]
    orders = {"one": [one] * count}
    if lab.settings["enable_kv_cache_reuse"]:  # without a cache every order is the same
        orders["turn"] = [several[number % 4] for number in range(count)]
        if lab.settings["max_tokens_in_paged_kv_cache"]:  # a large cache finds as much in any order
            orders["sorted"] = sorted(several[4 + number % 4] for number in range(count))
            if lab.quick:  # one instruction fits into a small cache too
                del orders["one"]
    data, every = {"requests": count, "orders": {}}, []
    ask(lab, [ids(length + OWN)])  # warm-up: what is compiled at first use
    for name, instructions in orders.items():
        records = ask(lab, [[*instruction, *ids(OWN)] for instruction in instructions])
        steps = steps_of(lab, records)
        times = [record.ttft_ms for record in records]
        found = {"first_ms": times[0], "ttft_ms": sum(times[1:]) / len(times[1:])}
        if steps:
            found |= counted(steps, count * (length + OWN))
            print(
                f"{lab.phase}, {name}: {found['computed']:,} of {found['asked']:,} prompt tokens computed", flush=True
            )
        data["orders"][name] = found
        every += records
    lab.finish({**data, **Lane(lab.phase, every, lab.steps(trtllm.MODEL)).to_json()}, every)


def ask(lab, prompts):
    """Send the requests one after the other, so that each finds the blocks of the earlier ones."""
    records = []
    with EngineStream(lab.endpoints["grpc"]) as stream:
        for number, prompt in enumerate(prompts, 1):
            records.append(stream.ask(prompt, ANSWER, f"question {number}"))
            stream.wait(records[-1], timeout=120)
    return records


def counted(steps, asked):
    """Prompt tokens that were computed; the others were in the cache."""
    rows = [pair for step in steps for pair in zip(step.tokens, step.phase, strict=True)]
    computed = sum(tokens for tokens, letter in rows if letter == "p")
    return {"asked": asked, "computed": computed, "hit_rate": 1 - computed / asked}


if __name__ == "__main__":
    main()
