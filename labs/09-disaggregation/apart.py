"""Part 1: the same requests on two servers that share them, and on two that share the work by kind."""

import json
import random
import sys
import time
from pathlib import Path

from fleet import DECODE, MODEL, Fleet, at_times, steps_of

from labkit.client import context, metrics
from labkit.evidence.records import Lane

READERS, LONGS, SHORTS = 4, 3, 4
READER, LONG, SHORT = (16, 60), (400, 8), (24, 8)  # tokens of prompt and answer
PATIENCE_S = 30


def main() -> None:
    lab = context.load_context(sys.argv[1])
    rng = random.Random(9)
    found, records = {"answers": {}}, []
    with Fleet(lab) as fleet:
        # (name, prompt, answer, moment of arrival): long prompts arrive while others read their answers.
        asks = [(f"reader{n}", fleet.text(rng, READER[0]), READER[1], 0.02 * n) for n in range(READERS)]
        asks += [(f"long{n}", fleet.text(rng, LONG[0]), LONG[1], 0.2 + 0.12 * n) for n in range(LONGS)]
        expected = sum(kv_bytes(lab, fleet.ids(prompt)) for _, prompt, _, _ in asks)
        ways = {
            "together": lambda number, prompt, tokens, name: fleet.whole(str(1 + number % 2), prompt, tokens, name),
            "apart": lambda number, prompt, tokens, name: fleet.apart(prompt, tokens, name),
        }
        for way, ask in ways.items():
            before = moved(lab)
            sent = at_times(
                [at for *_, at in asks], lambda number, ask=ask: ask(number, *asks[number][1:3], asks[number][0])
            )
            steps = steps_of(lab, sent)
            found[way] = {
                "between": most_between(steps, {record.id for record in sent if record.label.startswith("reader")}),
                "gap_ms": sorted(gap for record in sent[:READERS] for gap in record.itl_ms),
                "ttft_ms": {record.label: record.ttft_ms for record in sent},
                "moved": moved_since(lab, before, expected if way == "apart" else 0),
                **Lane(way, sent, steps).to_json(),
            }
            found["answers"][way] = [record.text for record in sent]
            records += sent
            print(
                f"{lab.phase}: {way}: at most {found[way]['between']} tokens of other prompts between two tokens",
                flush=True,
            )
        found["expected_bytes"] = expected
        found["bypass"] = bypassed(lab, fleet, rng)
    lab.finish(found, records)


def most_between(steps, readers):
    """The most tokens of prompts that one step computed for others while one of these requests decoded in it."""
    most = 0
    for step in steps:
        decodes = any(id in readers and letter == "d" for id, letter in zip(step.ids, step.phase, strict=True))
        if decodes:
            prompts = (n for n, letter in zip(step.tokens, step.phase, strict=True) if letter == "p")
            most = max(most, sum(prompts))
    return most


def bypassed(lab, fleet, rng):
    """Send short and long prompts. One of at most `bypass` tokens stays where it is decoded; what was moved."""
    asks = [(fleet.text(rng, tokens), answer) for tokens, answer in [SHORT] * SHORTS + [LONG] * 2]

    def ask(number):
        prompt, tokens = asks[number]
        if len(fleet.ids(prompt)) <= lab.settings["bypass"]:
            return fleet.whole(DECODE, prompt, tokens, f"short{number}")
        return fleet.apart(prompt, tokens, f"long{number}")

    before = moved(lab)
    sent = at_times([0.05 * number for number in range(len(asks))], ask)
    wanted = sum(kv_bytes(lab, fleet.ids(prompt)) for prompt, _ in asks[SHORTS:])
    _, fetched = moved_since(lab, before, wanted)
    return {
        "requests": len(asks),
        "short": sum(record.label.startswith("short") for record in sent),
        "fetched": fetched,
        "expected": wanted,
    }


def moved(lab):
    """Bytes that the servers have sent and fetched so far, by their own counters."""
    seen = [metrics.scrape(each["metrics"]).own for each in lab.replicas.values()]
    return [sum(own.get((MODEL, f"labs_moved_bytes_total {way}"), 0) for own in seen) for way in ("sent", "fetched")]


def moved_since(lab, before, expected):
    """Bytes sent and fetched since `before`, once both are as many as expected and at rest: the counters lag."""
    deadline = time.monotonic() + PATIENCE_S
    while min(since := [after - was for after, was in zip(moved(lab), before, strict=True)]) < expected:
        if time.monotonic() > deadline:
            return since
        time.sleep(0.05)
    time.sleep(0.5)  # twice the interval at which a server updates its counters: there may be more than expected
    return [after - was for after, was in zip(moved(lab), before, strict=True)]


def kv_bytes(lab, ids):
    """Bytes of the keys and values of a prompt in fp32, by the model's config.json."""
    config = json.loads(Path(lab.tokenizer_dir, "config.json").read_text(encoding="utf-8"))
    return 2 * config["n_layer"] * config["n_embd"] * 4 * len(ids)


if __name__ == "__main__":
    main()
