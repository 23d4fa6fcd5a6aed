"""Lab 04's yardsticks: the stepped load at four output lengths, and CodeGen's true 350M shape through the ensemble."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from labctl.labs.run import run_lab
from labctl.labs.servers import ephemeral_stack
from labctl.listener import Silent
from labctl.options import Options
from labctl.stack.session import Session
from labkit.client import load, metrics
from labkit.client.ask import TextStream
from labkit.client.text_model import TextModel
from labkit.evidence import stats
from labkit.evidence.records import RequestRecord
from labkit.tables import format_table

LENGTHS = (8, 32, 128, 512)
GENERATOR, SIDES = "codegen-350M-mono-gptj", ("preprocessing", "postprocessing")
MODEL = "random:codegen-350m"
USERS = 16
REQUESTS = {8: 64, 32: 32, 128: 16, 512: 16}
ONE_BY_ONE = (8, 32)  # longer answers one after the other take a quarter of an hour here
DELAY = {"max_queue_delay_microseconds": 50_000}  # little beside a step, and all users find into one batch
PROMPT = "# return the maximum of a list\ndef"
TIMEOUT_S = 600.0
MOST_SHARE = 0.036  # published: 2.73 % + 0.83 % at 8 tokens


def stepped(rounds: int) -> dict[str, Any]:
    """The lab itself at every length: the shipped model, 10 users more with each step up to 80."""
    session = Session.open(Silent())
    options = Options(set={"lengths": [*LENGTHS]})
    outcome = run_lab(
        session,
        session.catalog.lab("codegen"),
        replace(options, runtime="local", ports="auto", timeout=300.0),
        False,
        False,
    )
    for verdict in outcome.verdicts:
        print(f"{'met' if verdict.met else 'NOT MET'}: {verdict.text}")
    found: dict[str, Any] = dict(outcome.result["metrics"])
    return found


def true_shape(rounds: int) -> dict[str, Any]:
    """RPS, mean batch and the share of pre- and postprocessing, with the 350M shape."""
    session = Session.open(Silent())
    found: dict[str, dict[str, Any]] = {}
    for batching in (True, False):
        settings = {"model": MODEL, "exact": False, "threads": 2, "dynamic_batching": batching, **DELAY}
        lab, name = session.catalog.stack("codegen")
        options = Options(set=settings, runtime="local", ports="auto", timeout=600.0)
        with ephemeral_stack(session, lab, name, options) as handle:
            endpoints = vars(handle.record.endpoints)
            measure(endpoints, 8, USERS)  # a warm-up
            for tokens in LENGTHS if batching else ONE_BY_ONE:
                count = REQUESTS[tokens] if batching else USERS
                found.setdefault(str(tokens), {})["batching" if batching else "one_by_one"] = measure(
                    endpoints, tokens, count
                )
    rows = []
    for length, variants in found.items():
        for name, one in variants.items():
            rows.append(
                (
                    length,
                    name.replace("_", " "),
                    f"{one['request_throughput']:.2f}",
                    f"{one['request_latency']['p50']:.0f}",
                    f"{one['mean_batch']:.1f}",
                    *(f"{one['shares'][side]:.2%}" for side in SIDES),
                )
            )
    header = ("tokens", "batches", "RPS", "p50 ms", "mean batch", *SIDES)
    print(f"{MODEL}, {USERS} users")
    print(format_table(rows, header, right=(0, 2, 3, 4, 5, 6)))
    for length, variants in found.items():
        share = sum(variants["batching"]["shares"].values())
        print(
            f"{length} tokens: pre- and postprocessing take {share:.2%} of the inference time (limit: {MOST_SHARE:.1%})"
        )
    return found


def measure(endpoints: dict[str, str], tokens: int, count: int) -> dict[str, Any]:
    """Figures of ``count`` requests from ``USERS`` users, who each send the next request when one is answered."""
    asked = TextModel.of(endpoints["grpc"], "ensemble")

    def ask(stream: TextStream, number: int) -> RequestRecord:
        return asked.send(stream, PROMPT, tokens, to_the_end=True)

    before = metrics.scrape(endpoints["metrics"])
    records = load.closed_loop(endpoints["grpc"], USERS, count, ask, TIMEOUT_S)
    deadline = time.monotonic() + TIMEOUT_S  # Triton counts a request a moment after its last response
    while (counted := metrics.scrape(endpoints["metrics"]).since(before).models)[GENERATOR].inferences < count:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{count} requests were answered, Triton counts {counted[GENERATOR].inferences:.0f}")
    row = counted[GENERATOR]
    return {
        **stats.metrics(records),
        "inferences": row.inferences,
        "exec_count": row.exec_count,
        "mean_batch": row.mean_batch,
        "shares": {side: counted[side].compute_infer_us / row.compute_infer_us for side in SIDES},
    }
