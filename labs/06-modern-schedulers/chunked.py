"""Phase 1: a long prompt arrives while a request decodes. How long is the gap, and what does a shorter one cost?"""

import random
import sys
from itertools import pairwise
from statistics import median

from labkit.client import context
from labkit.client.trtllm import EngineStream, steps_of
from labkit.errors import LabError
from labkit.evidence.records import Lane

LONG, QUICK_LONG = 700, 384  # tokens of the long prompt
TOKENS = (100, 200, 400, 800, 1200)  # of the first request, which must not be done when the other arrives
FIRST_TOKENS = 8  # of the newcomer


def main() -> None:
    lab = context.load_context(sys.argv[1])
    rng = random.Random(6)
    long = [rng.randrange(5, 1200) for _ in range(QUICK_LONG if lab.quick else LONG)]
    short = [rng.randrange(5, 1200) for _ in range(16)]
    measure(lab, short, long[: lab.settings["max_num_tokens"]], TOKENS[0])  # warm-up: one step of that size
    for tokens in TOKENS:
        decoder, newcomer, steps = measure(lab, short, long, tokens)
        if decoder.output_tokens < tokens:  # it was not done before the newcomer
            break
    else:
        raise LabError(
            "the new prompt never met a decoding request", "the machine is very busy", code="requests-missing"
        )
    times = [at for at, _ in decoder.responses]
    gaps = [(b - a) * 1e3 for a, b in pairwise(times) if b > newcomer.start]
    data = {
        "prompt_tokens": len(long),
        "budget": lab.settings["max_num_tokens"],
        "longest_gap_ms": max(gaps),
        "usual_gap_ms": median((b - a) * 1e3 for a, b in pairwise(times)),
        "ttft_ms": newcomer.ttft_ms,
    }
    if steps:
        met = [step for step in steps if newcomer.id in step.ids and step.phase[step.ids.index(newcomer.id)] == "p"]
        data |= {"prompt_steps": len(met), "largest_step": max(sum(step.tokens) for step in met)}
        data["gaps_shared"] = sum(decoder.id in step.ids for step in met)
        print(
            f"{lab.phase}: the prompt took {len(met)} steps, the largest computed {data['largest_step']} tokens",
            flush=True,
        )
    print(
        f"{lab.phase}: longest gap {max(gaps):.0f} ms, time to the new request's first token {newcomer.ttft_ms:.0f} ms"
    )
    decoder.end = decoder.end or times[-1]  # it was cancelled
    lab.finish({**data, **Lane("", [decoder, newcomer], steps).to_json()}, [decoder, newcomer])


def measure(lab, short, long, tokens):
    """Send the long prompt while a request decodes. When it is answered, cancel the first request."""
    with EngineStream(lab.endpoints["grpc"]) as stream:
        decoder = stream.ask(short, tokens, "decodes")
        stream.wait_first(decoder, timeout=120)
        newcomer = stream.ask(long, FIRST_TOKENS, "long prompt")
        stream.wait(newcomer, timeout=120)
    return decoder, newcomer, steps_of(lab, [decoder, newcomer])


if __name__ == "__main__":
    main()
