"""For each part of the lab a table, a picture, and the numbers for its verdicts."""

from labkit.evidence import stats
from labkit.evidence.panels import Panel, draw_panels

WAYS = ("together", "apart")


def apart(report, run):
    """1. The same requests both ways: how long readers wait for prompts, and how many bytes are moved."""
    rows, found = [], {}
    for way in WAYS:
        one = run[way]
        long = [ms for label, ms in one["ttft_ms"].items() if label.startswith("long")]
        gaps = {part: stats.summarize(one["gap_ms"])[f"p{part}"] for part in (50, 99)}
        found[way] = {"between": one["between"], "fetched": one["moved"][1]}
        found[way] |= {f"gap_p{part}_ms": gap for part, gap in gaps.items()}
        times = [*gaps.values(), sum(long) / len(long)]
        rows.append((way, one["between"], *(f"{ms:.0f}" for ms in times), f"{one['moved'][1]:,.0f}"))
    header = ("two servers", "prompts between two tokens", "ITL p50 ms", "p99 ms", "TTFT of long ms", "bytes moved")
    report.table("1. Four readers, while long prompts arrive", rows, header)
    changed = sum(one != other for one, other in zip(*(run["answers"][way] for way in WAYS), strict=True))
    bypass = run["bypass"]
    report.say(
        f"Of {len(run['answers']['apart'])} answers {changed} differ. With the bypass, {bypass['short']} of "
        f"{bypass['requests']} requests stayed where they were decoded; {bypass['fetched']:,.0f} bytes were moved for "
        "the others."
    )
    return {
        **found,
        "changed": changed,
        "requests": len(run["answers"]["apart"]),
        "off": abs(run["apart"]["moved"][1] - run["expected_bytes"]),
        "bypass": {"short": bypass["short"], "off": abs(bypass["fetched"] - bypass["expected"])},
    }


def load(report, run):
    """2. The share of requests within their limits, by load; and where the two ways cross."""
    rates = [row["rate"] for row in run["rates"]]
    rows = []
    for row in run["rates"]:
        rows.append((row["rate"], *(f"{row[way][key]:.0%}" for way in WAYS for key in ("foreseen", "met"))))
    title = f"2. Requests with TTFT of at most {run['ttft_ms']} ms and TPOT of at most {run['tpot_ms']} ms"
    report.table(title, rows, ("requests/s", *(f"{way}, {key}" for way in WAYS for key in ("foreseen", "measured"))))
    curves = {
        f"{way}, {name}": (rates, [row[way][key] for row in run["rates"]])
        for way in WAYS
        for key, name in (("foreseen", "foreseen"), ("met", "measured"))
    }
    limits = f"at most {run['ttft_ms']} ms TTFT, {run['tpot_ms']} ms TPOT"
    draw_panels(
        [Panel(limits, "share of requests", "requests/s", curves)], report.out / "load.png", "Two ways to share"
    )
    report.say("![load](load.png)")
    crossings = {key: crossing(run["rates"], key) for key in ("foreseen", "met")}
    first = rates.index(crossings["foreseen"]) if crossings["foreseen"] in rates else len(rates)
    second = rates.index(crossings["met"]) if crossings["met"] in rates else len(rates)
    below = [row for row in run["rates"] if row["rate"] < (crossings["foreseen"] or 0)]
    return {
        "foreseen": crossings["foreseen"] or 0,
        "measured": crossings["met"] or 0,
        "apart_by": abs(first - second),
        "gain": max((row["apart"]["met"] - row["together"]["met"] for row in below), default=0),
    }


def crossing(rows, key):
    """The first load at which fewer requests are within their limits apart than together; None: there is none."""
    return next((row["rate"] for row in rows if row["apart"][key] < row["together"][key]), None)


def routing(report, run):
    """3. Cached tokens and the spread of requests, by the way in which a server is chosen."""
    found = {}
    for load, policies in run.items():
        if load not in ("agents", "fan-out"):
            continue
        rows = [
            (
                policy,
                f"{one['cached']:,}",
                f"{one['cached'] / one['prompt']:.0%}",
                f"{one['expected']:,}",
                " : ".join(map(str, one["served"].values())),
            )
            for policy, one in policies.items()
        ]
        report.table(
            f"3. {load}: tokens of prompts that were found",
            rows,
            ("server by", "cached tokens", "of all", "the router expected", "requests of each server"),
        )
        for policy, one in policies.items():
            name = policy.replace(" ", "_")
            found.setdefault(load.replace("-", "_"), {})[name] = {
                "cached": one["cached"],
                "share": max(one["served"].values()) / sum(one["served"].values()),
                "off": abs(one["expected"] - one["cached"]),
            }
    agents = found["agents"]
    agents["times"] = agents["least_work"]["cached"] / max(1, agents["round_robin"]["cached"])
    report.say("`router.jsonl` has each decision: what the router knew of each server, its scores, and what was found.")
    return found


def offload(report, run):
    """4. Load or compute: where the two times cross."""
    rows = [(row["tokens"], f"{row['computed_ms']:.0f}", f"{row['loaded_ms']:.0f}") for row in run["rows"]]
    report.table("4. A prompt's first token, ms", rows, ("tokens", "computed", "loaded"))
    curves = {
        name: ([row["tokens"] for row in run["rows"]], [row[key] for row in run["rows"]])
        for name, key in (("computed", "computed_ms"), ("loaded", "loaded_ms"))
    }
    draw_panels(
        [Panel("Load or compute", "ms", "tokens", curves)], report.out / "offload.png", "A prompt's first token"
    )
    report.say("![offload](offload.png)")
    measured, foreseen = run["break_even"], run["foreseen"]
    return {
        "measured": measured or 0,
        "foreseen": foreseen or 0,
        "ratio": measured / foreseen if measured and foreseen else 0,
    }
