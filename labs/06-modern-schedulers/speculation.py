"""Phase 3: speculative decoding. How many drafts are accepted, and does it pay?"""

import sys
import time

from labkit.client import context
from labkit.client.trtllm import EngineStream, steps_of
from labkit.evidence.records import Lane

PROMPTS = (
    "I have lived in Seoul",
    "Once upon a time",
    "My favourite food is",
    "Programming in Rust is like",
    "In winter the",
    "The hammer on the table is",
    "Paris is a quiet",
    "A good baker is",
)
TOKENS, QUICK_TOKENS = 160, 48
BATCHES = (1, 8)


def main() -> None:
    from tokenizers import Tokenizer

    lab = context.load_context(sys.argv[1])
    tokenizer = Tokenizer.from_file(f"{lab.tokenizer_dir}/tokenizer.json")
    prompts = [tokenizer.encode(prompt).ids for prompt in PROMPTS]
    limit = QUICK_TOKENS if lab.quick else TOKENS
    data, every = {"batches": {}, "tokens": limit}, []
    ask(lab, prompts, 8, len(prompts))  # warm-up: kernels are compiled at first use
    for batch in BATCHES:
        records, seconds = ask(lab, prompts, limit, batch)
        steps = steps_of(lab, records)
        tokens = sum(record.output_tokens for record in records)
        found = {"tokens_per_s": tokens / seconds, "answers": [[text for _, text in r.responses] for r in records]}
        found |= counted(steps, records) if steps else {}
        data["batches"][str(batch)] = found | Lane(f"{lab.phase}, batch {batch}", records, steps).to_json()
        every += records
        per_token = f", {found['steps_per_token']:.2f} steps per token" if steps else ""
        rate = f"{found['tokens_per_s']:.0f} tokens/s"
        print(f"{lab.phase}, batch {batch}: {tokens} tokens, {rate}{per_token}", flush=True)
    lab.finish(data, every)


def ask(lab, prompts, tokens, batch):
    """Send the prompts, ``batch`` at a time, and wait for their answers."""
    records, began = [], time.monotonic()
    with EngineStream(lab.endpoints["grpc"]) as stream:
        for first in range(0, len(prompts), batch):
            now = [
                stream.ask(ids, tokens, f"prompt {first + n}") for n, ids in enumerate(prompts[first : first + batch])
            ]
            stream.wait(*now, timeout=300)
            records += now
    return records, time.monotonic() - began


def counted(steps, records):
    """Steps for each token of a request after its first; drafts, and how many were accepted."""
    ids = {record.id for record in records}
    rows = tokens = guessed = accepted = 0
    for step in steps:
        none = [0] * step.batch  # without speculation
        columns = step.ids, step.phase, step.made, step.guessed or none, step.accepted or none
        for id, letter, made, guesses, right in zip(*columns, strict=True):
            if id in ids and letter == "d":
                rows, tokens = rows + 1, tokens + made
                guessed, accepted = guessed + guesses, accepted + right
    share = {"accepted_share": accepted / guessed} if guessed else {}
    return {"steps_per_token": rows / tokens, "steps": len(steps), "guessed": guessed, "accepted": accepted, **share}


if __name__ == "__main__":
    main()
