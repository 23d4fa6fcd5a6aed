"""For each part of the lab a table, a picture, and the numbers for its verdicts."""

import re
from collections import Counter

from labkit.evidence import replicas
from labkit.evidence.panels import Panel, draw_panels

CLIENTS = ("one", "eight")


def spread(report, runs):
    """1. The share of each replica, by balancing and by number of clients."""
    rows, found, bars = [], {}, {clients: {} for clients in CLIENTS}
    for phase, run in runs.items():
        balance = phase.removeprefix("spread-")
        shares = run["shares"]
        rows.append((balance, *(" : ".join(map(str, shares[clients])) for clients in CLIENTS)))
        found[balance] = {clients: max(shares[clients]) / run["requests"] for clients in CLIENTS}
        for clients in CLIENTS:
            bars[clients][balance] = shares[clients]
    requests = next(iter(runs.values()))["requests"]
    report.table(
        f"1. Load balancing: {requests} gRPC requests, by replica",
        rows,
        ("balance", "one client", "eight clients of one process"),
    )
    names = ["replica 1", "replica 2"]
    panels = [
        Panel(f"{clients} client{'s' * (clients != 'one')}", "requests", bars=bars[clients], names=names)
        for clients in CLIENTS
    ]
    picture(report, panels, "spread.png", "Load balancing: requests of each replica")
    return {**found, "requests": requests}


def sequences(report, runs):
    """2. The requests that break without affinity, and the sequences that are lost with a replica."""
    rows = [
        (
            phase.removeprefix("sequences-"),
            run["requests"],
            run["failed"],
            run["wrong"],
            f"{run['sequences'] - run['broken_sequences']} of {run['sequences']}",
        )
        for phase, run in runs.items()
    ]
    title = "2. Sequences need affinity"
    report.table(title, rows, ("balance", "requests", "failed", "answered wrongly", "whole sequences"))
    for phase, run in runs.items():
        for reason, count in grouped(run["reasons"]).items():
            report.say(f"{phase}: {count} times `{reason}`")
        if died := run.get("kill"):
            report.say(
                f"Replica 1 was killed with {died['sequences']} sequences under way on two replicas: {died['lost']} "
                f"were lost with it, and {died['began_anew']} of them were started again on the other replica. When "
                f"replica 1 was back, {died['lost_again']} of these were lost again, because consistent hashing sends "
                f"their ids back to it. Of the other sequences, {died['others_broken']} were disturbed."
            )
    bars = {phase.removeprefix("sequences-"): [run["failed"], run["wrong"]] for phase, run in runs.items()}
    panels = [Panel(title, "requests", bars=bars, names=["failed", "answered wrongly"])]
    picture(report, panels, "sequences.png", "Requests that broke")
    return {phase.removeprefix("sequences-"): numbers(run) for phase, run in runs.items()}


def grouped(reasons):
    """How often each error was said. Errors that differ in a sequence's number only are one."""
    found = Counter()
    for reason, count in reasons.items():
        found[re.sub(r"\bsequence \d+", "sequence N", reason)] += count
    return found


def speed_up(report, runs):
    """3. The gain of a second replica on one machine."""
    rates = runs["speed-up"]["rates"]
    times = {model: each["two"] / each["one"] for model, each in rates.items()}
    report.table(
        f"3. The gain of a second replica: {runs['speed-up']['users']} users",
        [(model, f"{each['one']:.0f}", f"{each['two']:.0f}", f"{times[model]:.2f}") for model, each in rates.items()],
        ("model", "requests/s, one replica", "two replicas", "times"),
    )
    bars = {model: [each["one"], each["two"]] for model, each in rates.items()}
    panels = [Panel("the same machine", "requests/s", bars=bars, names=["one replica", "two replicas"])]
    picture(report, panels, "speed-up.png", "The gain of a second replica")
    return {**times, "ratio": times["waits"] / times["computes"]}


def lost(report, runs):
    """4. What clients noticed of a kill and of a rolling restart."""
    run = runs["nothing-lost"]
    later = run["unary_failed_later"]
    report.table(
        "4. Failure and restart: requests that failed",
        [
            ("unary", run["unary"], run["unary_failed"] - later, later),
            ("streams", run["streams"], run["cut_by_kill"], run["cut_later"]),
        ],
        ("", "sent", "by the kill", "by the rolling restart"),
    )
    for one in run["cut"]:
        report.say(f"- {one['request']} was cut after {one['after_tokens']} tokens: `{one['error'].splitlines()[0]}`")
    words = {"kill": "replica 2 is killed", "restart": "labctl restart", "roll": "labctl restart --rolling"}
    events = [replicas.ReplicaEvent(event["began"], event["ended"], words[event["act"]]) for event in run["events"]]
    names = {"waits": "requests (waits)", "streams": "words (streams)"}
    steps = {
        number: [replicas.ReplicaBatch(began, ended, names[model], batch) for began, ended, model, batch in own]
        for number, own in run["steps"].items()
    }
    replicas.draw_replicas(
        steps, events, report.out / "nothing-lost.png", "Failure and restart: what each replica answered"
    )
    report.say("![What each replica answered](nothing-lost.png)")
    return numbers(run)


def signal(report, runs):
    """5. Which number shows that a stack is overloaded."""
    run = runs["when-to-scale"]
    waits, streams, auto = run["waits"], run["streams"], run["auto"]
    report.table(
        "5. When to scale: both models offered twice their capacity",
        [
            (
                "waits: Triton's queue",
                f"{waits['queue_to_compute']:.2f}",
                f"{waits['waiting']:.0f}",
                f"{waits['latency_s']:.1f}",
            ),
            (
                "streams: its own loop",
                f"{streams['queue_to_compute']:.2f}",
                f"{streams['waiting']:.0f}",
                f"{streams['ttft_s']:.1f}",
            ),
        ],
        ("model", "queue/compute", "waiting", "last request's first answer, s"),
    )
    curves = {
        f"replica {number}": ([at for at, *_ in seen], [queue for _, queue, _ in seen])
        for number, seen in auto["waiting"].items()
        if seen
    }
    first = sorted(auto["ttft"])
    added = {"the loop decides": auto["decided_s"]}
    panels = [
        Panel("waiting requests", "requests", "seconds", curves, steps=True, marks=added),
        Panel(
            "time to first token, by arrival",
            "s",
            "seconds",
            {"requests": tuple(zip(*first, strict=True))},
            dots=True,
            marks=added,
        ),
    ]
    picture(report, panels, "when-to-scale.png", f"A loop adds a replica after {auto['decided_s']:.0f} s")
    return {
        "waits": numbers(waits),
        "streams": numbers(streams),
        "auto": numbers(auto),
        "blindness": waits["queue_to_compute"] / max(streams["queue_to_compute"], 0.01),
        "least_waiting": min(waits["waiting"], streams["waiting"]),
    }


def numbers(run):
    """The numbers of a phase, in their groups, without its lists."""
    return {
        key: numbers(value) if isinstance(value, dict) else value
        for key, value in run.items()
        if not isinstance(value, list | str) and key not in ("reasons", "steps", "waiting_of", "ttft")
    }


def picture(report, panels, name, title):
    draw_panels(panels, report.out / name, title)
    report.say(f"![{title}]({name})")
