"""Part 2: more and more load. Which of the two ways keeps more requests within their limits, and where they cross.

The crossing is foreseen from the paces before anything is measured (foresee.py).
"""

import random
import sys

import foresee
from fleet import Fleet, at_times

from labkit.client import context

PROMPT, ANSWER = 240, 12  # tokens
TTFT_MS, TPOT_MS = 400, 15
RATES, QUICK_RATES = (3, 4, 5, 6, 7, 8, 10), (3, 5, 8, 10)  # requests/s
REQUESTS = 30
WAYS = ("together", "apart")


def main() -> None:
    lab = context.load_context(sys.argv[1])
    rng = random.Random(9)
    gaps = [rng.expovariate(1) for _ in range(REQUESTS)]  # the same for every rate, drawn together or apart
    found = {"prompt": PROMPT, "answer": ANSWER, "ttft_ms": TTFT_MS, "tpot_ms": TPOT_MS, "rates": []}
    records = []
    with Fleet(lab) as fleet:
        for rate in QUICK_RATES if lab.quick else RATES:
            moments = [sum(gaps[:number]) / rate for number in range(REQUESTS)]
            row = {"rate": rate}
            for way in WAYS:
                row[way], sent = measured(fleet, way, moments, rng)
                row[way]["foreseen"] = foreseen(lab.settings, way, moments)
                records += sent
            found["rates"].append(row)
            shares = ", ".join(f"{way} {row[way]['met']:.0%} (foreseen {row[way]['foreseen']:.0%})" for way in WAYS)
            print(f"{lab.phase}: {rate} requests/s: within the limits {shares}", flush=True)
    lab.finish(found, records)


def foreseen(settings, way, moments):
    """The share within the limits by the paces alone."""
    requests = [(1000 * at, PROMPT, ANSWER) for at in moments]
    served = getattr(foresee, way)(requests, settings["step_ms"], settings["token_ms"], settings["slots"])
    return foresee.met(foresee.times(requests, served), TTFT_MS, TPOT_MS)


def measured(fleet, way, moments, rng):
    """The share within the limits, and the median TTFT and TPOT; and the records."""
    prompts = [fleet.text(rng, PROMPT) for _ in moments]

    def ask(number):
        if way == "apart":
            return fleet.apart(prompts[number], ANSWER)
        return fleet.whole(str(1 + number % 2), prompts[number], ANSWER)

    sent = at_times(moments, ask)
    pairs = [(record.ttft_ms, record.tpot_ms) for record in sent]
    middle = [sorted(values)[len(values) // 2] for values in zip(*pairs, strict=True)]
    return {"met": foresee.met(pairs, TTFT_MS, TPOT_MS), "ttft_ms": middle[0], "tpot_ms": middle[1]}, sent


if __name__ == "__main__":
    main()
