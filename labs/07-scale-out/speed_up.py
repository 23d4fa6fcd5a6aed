"""Part 3: requests/s of one replica and of two, of a model that waits and of one that computes."""

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from statistics import median

from labkit.client import context
from labkit.client.ask import UnaryClient, text_tensor

USERS = 16
REQUESTS, QUICK_REQUESTS = {"waits": 96, "computes": 32}, {"waits": 32, "computes": 12}
ROUNDS = 3
WARM_UP = 4  # requests


def main() -> None:
    lab = context.load_context(sys.argv[1])
    ways = {"one": lab.replicas["1"]["grpc"], "two": lab.endpoints["grpc"]}
    every, rates = [], {}
    for model, count in (QUICK_REQUESTS if lab.quick else REQUESTS).items():
        for endpoint in ways.values():
            load(endpoint, model, WARM_UP)
        each = {way: [] for way in ways}
        for _ in range(ROUNDS):  # alternately: the machine may change meanwhile
            for way, endpoint in ways.items():
                records, seconds = load(endpoint, model, count)
                each[way].append(count / seconds)
                every += records
        rates[model] = {way: median(values) for way, values in each.items()}
        one, two = rates[model].values()
        print(f"{model}: {one:.0f} requests/s with one replica, {two:.0f} with two: {two / one:.2f} times", flush=True)
    lab.finish({"rates": rates, "users": USERS}, every)


def load(endpoint, model, count):
    """Send ``count`` requests from all users; each user waits for its answer before it sends the next request."""

    def ask(_):
        record = client.send_inputs(model, "hello", [text_tensor("text_input", "hello")])
        client.wait(record, timeout=120)
        return record

    with UnaryClient(endpoint) as client, ThreadPoolExecutor(USERS) as users:
        began = time.monotonic()
        records = list(users.map(ask, range(count)))
        return records, time.monotonic() - began


if __name__ == "__main__":
    main()
