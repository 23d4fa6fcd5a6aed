"""Part 1: which replica gets how many requests, of one client and of eight in one process?"""

import sys
import time
from contextlib import ExitStack

from labkit.client import context, metrics
from labkit.client.ask import UnaryClient, text_tensor
from labkit.errors import LabError

MODEL, REQUESTS = "waits", 40
SETTLE_S = 120.0  # until the servers have counted, or a connection is there


def main() -> None:
    lab = context.load_context(sys.argv[1])
    found, every = {"requests": REQUESTS, "shares": {}}, []
    for name, clients in (("one", 1), ("eight", 8)):
        shares, records = shared(lab, clients)
        found["shares"][name] = shares
        every += records
        print(f"{lab.phase}: {name} client{'s' * (clients > 1)}: {' and '.join(map(str, shares))} requests", flush=True)
    lab.finish(found, every)


def shared(lab, clients):
    """The requests that each replica answered, by Triton's own counters; and the records."""
    with ExitStack() as stack:
        opened = [stack.enter_context(UnaryClient(lab.endpoints["grpc"])) for _ in range(clients)]
        if lab.phase.endswith("client"):
            connected(lab, opened[0])
        before = served(lab)
        sent = [
            (client, client.send_inputs(MODEL, "hello", [text_tensor("text_input", "hello")]))
            for number in range(REQUESTS)
            for client in [opened[number % clients]]
        ]
        for client, record in sent:
            client.wait(record, timeout=120)
    deadline = time.monotonic() + SETTLE_S
    while sum(now := [after - was for after, was in zip(served(lab), before, strict=True)]) < REQUESTS:
        if time.monotonic() > deadline:
            raise LabError(
                f"the replicas' counters do not come to {REQUESTS}", f"they say {now}", code="counters-unsettled"
            )
        time.sleep(0.05)
    return now, [record for _, record in sent]


def connected(lab, client):
    """Ask until every replica has answered: gRPC's round robin skips replicas that are still connecting."""
    before, deadline = served(lab), time.monotonic() + SETTLE_S
    while not all(after > was for after, was in zip(served(lab), before, strict=True)):
        if time.monotonic() > deadline:
            raise LabError(
                "a client that spreads its requests itself has not reached every replica", code="replica-unreached"
            )
        client.wait(client.send_inputs(MODEL, "hello", [text_tensor("text_input", "hello")]), timeout=120)


def served(lab):
    seen = [metrics.scrape(endpoints["metrics"]).models for endpoints in lab.replicas.values()]
    return [round(models.get(MODEL, metrics.ModelCounters()).succeeded) for models in seen]


if __name__ == "__main__":
    main()
