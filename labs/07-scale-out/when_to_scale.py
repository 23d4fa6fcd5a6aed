"""Part 5: two models are offered twice their capacity. Which number shows it? Then a loop scales on that number."""

import itertools
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from statistics import median

from labkit.client import context, metrics
from labkit.client.ask import TextStream, UnaryClient, text_tensor
from labkit.evidence import steplog

TOKENS = 8
TEXT = "one word after the other until all are said"
OVERLOAD_S = {"waits": 1.5, "streams": 2.0}
TOLD_S = 30.0  # a model sends its gauges four times a second
TARGET = 2.0  # requests that may wait for a replica
SETTLE_S, QUICK_SETTLE_S = 16.0, 5.5  # watched after the second replica was added
MOST_S = 60.0  # the longest wait for one
LAST_S = 3.0  # the last seconds, whose requests are compared


def main() -> None:
    lab = context.load_context(sys.argv[1])
    one = lab.act("scale", count=1).done().replicas["1"]
    seats, step_s = lab.settings["seats"], lab.settings["step_ms"] / 1e3
    able = {"waits": seats / step_s, "streams": seats / (TOKENS * step_s)}  # requests/s of one replica
    waits, asked = overload_unary(lab, one, 2 * able["waits"])
    streams, listened = overload_streams(lab, one, 2 * able["streams"])
    auto, followed = follow(lab, 1.25 * able["streams"], QUICK_SETTLE_S if lab.quick else SETTLE_S)
    lab.act("scale", count=2).done()  # as it was
    lab.finish({"able": able, "waits": waits, "streams": streams, "auto": auto}, [*asked, *listened, *followed])


def overload_unary(lab, one, rate):
    before = metrics.scrape(one["metrics"])
    with UnaryClient(lab.endpoints["grpc"]) as client:
        records = [
            client.send_inputs("waits", "hello", [text_tensor("text_input", "hello")])
            for _ in at_rate(rate, OVERLOAD_S["waits"])
        ]
        found = seen(one, "waits", before)
        client.wait(*records, timeout=120)
    return {**found, "rate": rate, "latency_s": records[-1].latency_ms / 1e3}, records


def overload_streams(lab, one, rate):
    before = metrics.scrape(one["metrics"])
    with TextStream(lab.endpoints["grpc"]) as stream:
        records = [stream.send("streams", TEXT) for _ in at_rate(rate, OVERLOAD_S["streams"])]
        wait_until_counted(lab, one, records)
        found = seen(one, "streams", before)
        stream.wait(*records, timeout=120)
    return {**found, "rate": rate, "ttft_s": records[-1].ttft_ms / 1e3}, records


def wait_until_counted(lab, one, records):
    """Wait until the model's gauge counts the waiting requests: those without a first word that are not in a step."""
    deadline = time.monotonic() + TOLD_S
    while time.monotonic() < deadline:
        waiting = sum(not record.responses for record in records) - lab.settings["seats"]
        if metrics.scrape(one["metrics"]).waiting("streams") >= waiting:
            return
        time.sleep(0.05)


def seen(one, model, before):
    """Two signals for an autoscaler: upstream's ratio, and the number of waiting requests."""
    now = metrics.scrape(one["metrics"])
    spent = now.since(before).models[model]
    compute = spent.compute_input_us + spent.compute_infer_us + spent.compute_output_us
    found = {"queue_to_compute": spent.queue_us / max(compute, 1.0), "waiting": now.waiting(model)}
    ratio = f"Triton's queue-to-compute ratio is {found['queue_to_compute']:.2f}"
    print(f"{model}: {found['waiting']:.0f} requests wait, and {ratio}", flush=True)
    return found


def follow(lab, rate, settle):
    """Offer a quarter more than one replica can do, while `labctl scale STACK --auto 1:2` may add one."""
    began = time.monotonic()
    loop = lab.act("follow", least=1, most=2, target=TARGET, settle=settle, seconds=MOST_S)
    with ThreadPoolExecutor(256) as users:
        asked = [
            users.submit(listen, lab.endpoints["grpc"])
            for _ in itertools.takewhile(lambda _: not loop.over, at_rate(rate, float("inf")))
        ]
        done = loop.done()
        records = [each.result() for each in asked]
    decided = [decision["decided"] - began for decision in done.outcome]
    times = [[record.start - began, record.ttft_ms / 1e3] for record in records]
    waiting = {
        folder.name.removeprefix("replica-"): [
            [step.over - began, step.queue, step.batch] for step in steplog.read_step_log(folder, "streams", began)
        ]
        for folder in sorted(lab.run_dir.glob("replica-*"))
    }
    worst = max(ttft for _, ttft in times)
    last = median(ttft for at, ttft in times if at > times[-1][0] - LAST_S)
    print(f"the loop: {'; '.join(decision['text'] for decision in done.outcome) or 'nothing'}", flush=True)
    print(f"time to first token: {worst:.1f} s at the worst, {last:.1f} s at the end", flush=True)
    return {
        "replicas": len(done.replicas),
        "decided_s": decided[0] if decided else MOST_S,
        "decisions": decided,
        "worst_s": worst,
        "last_s": last,
        "back": last / worst,
        "rate": rate,
        "ttft": times,
        "waiting": waiting,
    }, records


def listen(endpoint):
    with TextStream(endpoint) as stream:  # a stream each: a balancer sends a whole stream to one replica
        record = stream.send("streams", TEXT)
        stream.wait(record, timeout=120)
        return record


def at_rate(rate, seconds):
    """Yield when a request is due, whether or not earlier ones have been answered."""
    began = time.monotonic()
    for number in itertools.takewhile(lambda number: number < rate * seconds, itertools.count()):
        time.sleep(max(0.0, began + number / rate - time.monotonic()))
        yield number


if __name__ == "__main__":
    main()
