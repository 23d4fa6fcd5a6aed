"""Part 4: load the keys and values of a prompt, or compute them again? From which length on does loading pay?

Each prompt is sent twice: first nothing of it is there, then it is loaded from the server's blocks. The settings
`load_ms` and `load_mib_s` say how slow that is. The break-even length is foreseen before it is measured.
"""

import json
import random
import sys
from itertools import pairwise
from pathlib import Path

from fleet import Fleet, steps_of

from labkit.client import context

LENGTHS, QUICK_LENGTHS = (48, 80, 112, 144, 160, 176, 208, 256, 320), (64, 112, 160, 208, 288)  # whole blocks


def main() -> None:
    lab = context.load_context(sys.argv[1])
    rng = random.Random(9)
    rows, records = [], []
    with Fleet(lab) as fleet:
        for length in QUICK_LENGTHS if lab.quick else LENGTHS:
            prompt = fleet.text(rng, length + 1)  # the last token is always computed
            pair = [fleet.whole("1", prompt, 1) for _ in range(2)]
            records += pair
            computed, loaded = spent(lab, pair)
            rows.append({"tokens": length, "computed_ms": computed, "loaded_ms": loaded})
            print(f"{lab.phase}: {length} tokens: computed {computed:.0f} ms, loaded {loaded:.0f} ms", flush=True)
    lab.finish({"rows": rows, "break_even": break_even(rows), "foreseen": foreseen(lab)}, records)


def spent(lab, records):
    """For each request the milliseconds of its load and of its first step, by the server's step log."""
    spent = {}
    for step in steps_of(lab, records):
        for id, letter in zip(step.ids, step.phase, strict=True):
            if letter == "p":
                spent[id] = 1000 * (step.over - step.began) + step.more["load_us"] / 1000
    return [spent[record.id] for record in records]


def foreseen(lab):
    """Tokens from which on loading takes less than computing: `load_ms` over what each token saves."""
    settings = lab.settings
    config = json.loads(Path(lab.tokenizer_dir, "config.json").read_text(encoding="utf-8"))
    mib = 2 * config["n_layer"] * config["n_embd"] * 4 / 2**20  # of a token, in fp32
    saved = settings["token_ms"] - (1000 * mib / settings["load_mib_s"] if settings["load_mib_s"] else 0)
    return settings["load_ms"] / saved if saved > 0 else None


def break_even(rows):
    """The length at which the two are equal, between the last that is faster computed and the first faster loaded."""
    gains = [(row["tokens"], row["computed_ms"] - row["loaded_ms"]) for row in rows]
    for (shorter, lost), (longer, gained) in pairwise(gains):
        if lost < 0 <= gained:
            return shorter + (longer - shorter) * -lost / (gained - lost)
    return None


if __name__ == "__main__":
    main()
