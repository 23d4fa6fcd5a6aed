"""Lab 02's client: two prompts, the second a moment after the first, on a server that waits and one that does not.

Then more clients, arriving at random. Run by ``labctl run iterative``, once for each phase.
"""

import random
import sys
import time

from labkit.client import context, load
from labkit.client.ask import Tell, TextStream
from labkit.client.live import LiveView, ProgressLine
from labkit.evidence import stats
from labkit.evidence.records import Lane, RequestRecord, token_overlap
from labkit.tables import format_table

MODELS = ("simple-gpt2", "iterative-gpt2")
PROMPTS = ("Programming in C++ is like", "I have lived in Seoul")
OTHERS = ("My favourite food is", "Once upon a time", "The fox", "I have lived in Paris", "In winter the", "Anna")
GAP_S = 0.05  # from the first prompt to the second
LONGEST, SHORTEST = 400, 64  # tokens of an answer
DRAWN = 24  # tokens of each answer in the picture: the same in every phase, and few enough to see each of them
TIMEOUT_S = 120.0


def tokens_for(endpoint: str, seconds: float) -> tuple[int, str]:
    """How many tokens make an answer that takes about ``seconds`` here, measured after a warm-up of both models.

    Also a sentence about it: on a fast machine it is the most that an answer may have, and takes less.
    """
    with TextStream(endpoint) as stream:
        for model in MODELS:
            record = stream.send(model, PROMPTS[0], max_tokens=SHORTEST // 2, ignore_eos=True)
            stream.wait(record, timeout=TIMEOUT_S)
        return length(record.tpot_ms / 1e3, seconds)


def length(step_s: float, seconds: float) -> tuple[int, str]:
    """The tokens of an answer if each takes ``step_s``, and a clause about their number."""
    tokens = max(SHORTEST, min(LONGEST, int(seconds / max(step_s, 1e-4))))
    takes = f"an answer alone takes {tokens * step_s:.1f} s"
    return tokens, f"{takes}; none is longer than {LONGEST} tokens" if tokens == LONGEST else takes


def two_prompts(endpoint: str, model: str, tokens: int) -> list:
    """Send the second request while the first is being answered; return both."""
    with LiveView(tokens) as view, TextStream(endpoint, view.token) as stream:
        records = []
        for prompt in PROMPTS:
            if records:  # the first must be under way, also on a busy machine
                stream.wait_first(records[0], timeout=TIMEOUT_S)
                time.sleep(max(0.0, records[0].start + GAP_S - time.monotonic()))
            records.append(stream.send(model, prompt, max_tokens=tokens, ignore_eos=True))
            view.watch(records[-1])
        stream.wait(*records, timeout=TIMEOUT_S)
    return records


def drawn(endpoint: str, model: str) -> list:
    """Two short answers for the picture; the second prompt is sent after the first token of the first."""
    with TextStream(endpoint) as stream:
        first = stream.send(model, PROMPTS[0], max_tokens=DRAWN, ignore_eos=True)
        stream.wait_first(first, timeout=TIMEOUT_S)
        second = stream.send(model, PROMPTS[1], max_tokens=DRAWN, ignore_eos=True)
        stream.wait(first, second, timeout=TIMEOUT_S)
    return [first, second]


def many_clients(endpoint: str, model: str, clients: int, tokens: int, tell: Tell) -> list:
    """Send ``clients`` requests of unequal lengths, at random within the time of about one answer."""
    rng = random.Random(clients)
    lengths = [max(8, int(tokens * rng.uniform(0.3, 1.0))) for _ in range(clients)]
    with TextStream(endpoint) as stream:
        records = load.open_loop(
            load.poisson(clients, rate=clients / 1.0, seed=2),
            lambda i: stream.send(model, OTHERS[i % len(OTHERS)], max_tokens=lengths[i], ignore_eos=True),
        )
        stream.wait(*records, timeout=TIMEOUT_S, tell=tell)
    return records


def tokens_before(newcomer: RequestRecord, first: RequestRecord) -> int:
    """The tokens that the first request got while the newcomer waited for its own first one."""
    return sum(newcomer.start < at <= newcomer.responses[0][0] for at, _ in first.responses)


def batches(steps: list) -> dict:
    """The newcomer's steps until it shared a batch, and the time of a step in ms, by batch size."""
    joined = next((n for n, step in enumerate(steps) if n and step.prefill), 0)
    shared = next((n for n, step in enumerate(steps) if step.batch == 2), None)
    plain = {size: [s.over - s.began for s in steps if s.batch == size and not s.prefill] for size in (1, 2)}
    return {
        "steps_alone": None if shared is None else max(0, shared - joined),
        "step_ms": {f"batch_of_{size}": stats.summarize(took)["p50"] * 1e3 for size, took in plain.items() if took},
    }


def main() -> None:
    lab = context.load_context(sys.argv[1])
    endpoint, clients = lab.endpoints["grpc"], int(lab.settings["clients"])
    cache = "With a KV cache" if lab.settings["kv_cache"] else "Without a KV cache"
    seconds = 0.8 if lab.quick else 2.0
    tokens, about = tokens_for(endpoint, seconds)
    print(f"\nTwo prompts, {tokens} tokens each; the second is sent {GAP_S * 1e3:.0f} ms after the first.")
    print(f"{cache}, {about}.")
    data: dict = {"tokens": tokens, "drawn": {}, "demo": {}, "clients": {}}
    for model in MODELS:
        records = drawn(endpoint, model)
        data["drawn"][model] = Lane(model, records, lab.steps(model, records)).to_json()
    every, rows = [], []
    for model in MODELS:
        print(f"\n{model}")
        records = two_prompts(endpoint, model, tokens)
        shared, waited = token_overlap(*records), tokens_before(records[1], records[0])
        steps = lab.steps(model, records)
        data["demo"][model] = {
            "token_overlap": shared,
            "tokens_before_newcomer": waited,
            **batches(steps),
            "metrics": stats.metrics(records),
            **Lane(model, records, steps).to_json(),
        }
        rows += [
            (model, r.prompt, f"{r.ttft_ms:.0f}", f"{r.tpot_ms:.1f}", f"{r.latency_ms:.0f}", f"{shared:.0%}")
            for r in records
        ]
        every += records
    print(
        "\n" + format_table(rows, ("model", "prompt", "TTFT ms", "TPOT ms", "total ms", "overlap"), right=(2, 3, 4, 5))
    )

    print(f"\n{clients} clients arriving at random")
    rows = []
    for model in MODELS:
        with ProgressLine(model) as progress:
            records = many_clients(endpoint, model, clients, tokens, progress)
        totals = data["clients"][model] = stats.metrics(records)
        ttft = totals["time_to_first_token"]
        rows.append((model, f"{totals['output_token_throughput']:.0f}", f"{ttft['p50']:.0f}", f"{ttft['max']:.0f}"))
        every += records
    print(format_table(rows, ("model", "tokens/s", "TTFT p50 ms", "TTFT max ms"), right=(1, 2, 3)))
    lab.finish(data, every)


if __name__ == "__main__":
    main()
