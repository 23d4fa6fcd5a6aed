"""For each lesson a table, a picture, and the numbers for its verdicts.

Counts are those of the step log. NVIDIA's engines write none: a dash stands in their place.
"""

import math

from labkit.evidence.panels import Panel, draw_panels

NONE = "-"


def chunked(report, runs):
    """1. The token budget of a step, against the longest gap of a running request and the TTFT of a new one."""
    points = sorted(runs.values(), key=lambda run: -run["budget"])
    report.table(
        f"1. Chunked prefill: a prompt of {points[0]['prompt_tokens']} tokens meets a decoding request",
        [
            (
                run["budget"],
                run.get("largest_step", NONE),
                run.get("prompt_steps", NONE),
                f"{run['usual_gap_ms']:.0f}",
                f"{run['longest_gap_ms']:.0f}",
                f"{run['ttft_ms']:.0f}",
            )
            for run in points
        ],
        ("budget", "largest step", "steps of the prompt", "usual gap, ms", "longest gap, ms", "new request's TTFT, ms"),
        left=0,
    )
    budgets = [run["budget"] for run in points]
    found = {"most": numbers(points[0]), "least": numbers(points[-1])}
    times = {
        "longest gap of a running request": (budgets, [run["longest_gap_ms"] for run in points]),
        "TTFT of a new request": (budgets, [run["ttft_ms"] for run in points]),
    }
    panels = [Panel("the smaller the budget, the shorter the gap", "ms", "token budget of a step", times, log=True)]
    if all("largest_step" in run for run in points):
        found["over_budget"] = max(run["largest_step"] - run["budget"] for run in points)
        found["work_ratio"] = points[0]["largest_step"] / points[-1]["largest_step"]
        work = {"computed": (budgets, [run["largest_step"] for run in points])}
        title = "most tokens computed between two of a running request"
        panels.insert(0, Panel(title, "tokens", "token budget of a step", work, log=True))
    picture(report, panels, "chunked.png", "Chunked prefill: a token budget for every step")
    return found


def prefix(report, runs):
    """2. How much of the prompts was computed, and the time to the first token."""
    rows, found = [], {}
    for phase, run in runs.items():
        for order, one in run["orders"].items():
            counted = (f"{one['computed']:,}", f"{one['hit_rate']:.0%}") if "computed" in one else (NONE, NONE)
            rows.append((phase, TITLES[order], *counted, f"{one['first_ms']:.0f}", f"{one['ttft_ms']:.0f}"))
            found.setdefault(phase.removeprefix("prefix-"), {})[order] = numbers(one)
    report.table(
        f"2. Prefix cache: {runs[next(iter(runs))]['requests']} requests with prompts that begin alike",
        rows,
        ("phase", "instructions", "prompt tokens computed", "hit rate", "first TTFT, ms", "TTFT of the others, ms"),
        left=2,
    )
    every = [one for run in runs.values() for one in run["orders"].values()]

    def bars(key):
        return {
            CACHES.get(phase, phase): [run["orders"].get(order, {}).get(key, math.nan) for order in TITLES]
            for phase, run in runs.items()
        }

    panels = [Panel("mean TTFT of all but the first", "ms", bars=bars("ttft_ms"), names=[*TITLES.values()])]
    if all("computed" in one for one in every):
        panels.insert(0, Panel("prompt tokens computed", "tokens", bars=bars("computed"), names=[*TITLES.values()]))
    picture(report, panels, "prefix.png", "Prefix caching: prompts that begin alike")
    if {"off", "on"} <= found.keys():
        off, on = found["off"]["one"], found["on"]["one"]
        if "computed" in on:
            found["saved"] = off["computed"] / on["computed"]
    if {"on", "small"} <= found.keys():
        found["lost"] = found["on"]["turn"]["hit_rate"] - found["small"]["turn"]["hit_rate"]
    return found


CACHES = {"prefix-off": "no cache", "prefix-on": "cache", "prefix-small": "small cache"}
TITLES = {"one": "one prefix", "turn": "four in turn", "sorted": "four, sorted"}


def speculation(report, runs):
    """3. Steps for a token, the acceptance rate, and the tokens per second."""
    plain, rows, found = runs.get("plain"), [], {}
    for phase, run in runs.items():
        for batch, one in run["batches"].items():
            base = (plain or run)["batches"][batch]
            same = sum(a == b for a, b in zip(one["answers"], base["answers"], strict=True))
            times = one["tokens_per_s"] / base["tokens_per_s"]
            accepted = f"{one['accepted']:,} of {one['guessed']:,}" if one.get("guessed") else NONE
            rows.append(
                (
                    phase,
                    batch,
                    f"{one['steps_per_token']:.2f}",
                    accepted,
                    f"{one['tokens_per_s']:.0f}",
                    f"{times:.2f}",
                    f"{same} of {len(base['answers'])}",
                )
            )
            found.setdefault(phase.replace("-", "_"), {})[f"batch_{batch}"] = {
                **numbers(one),
                "times_plain": times,
                "same_answers": same,
            }
    report.table(
        "3. Speculative decoding: several tokens of a request in one step",
        rows,
        ("phase", "batch", "steps per token", "drafts accepted", "tokens/s", "times plain", "same answers"),
        left=1,
    )
    batches = list(next(iter(runs.values()))["batches"])

    def bars(key):
        return {f"batch {b}": [run["batches"][b][key] for run in runs.values()] for b in batches}

    panels = [
        Panel("steps for a token of a request", "steps", bars=bars("steps_per_token"), names=list(runs)),
        Panel("tokens per second", "tokens/s", bars=bars("tokens_per_s"), names=list(runs)),
    ]
    picture(report, panels, "speculation.png", "Speculative decoding: several drafts checked in one step")
    return found


def tenants(report, runs):
    """4. The tokens that each tenant was served while both waited."""
    report.table(
        "4. Scheduling policies: one tenant floods, a light one sends little",
        [
            (
                phase,
                f"{run['flood']['ttft_ms']:.0f}",
                f"{run['light']['ttft_ms']:.0f}",
                f"{run['flood']['last_ms']:.0f}",
                f"{run['served']['flood'][-1]:,} : {run['served']['light'][-1]:,}",
                f"{run['behind']:.1f}",
            )
            for phase, run in runs.items()
        ],
        (
            "scheduling",
            "flood's TTFT, ms",
            "light tenant's TTFT, ms",
            "flood done, ms",
            "served while both wait",
            "light tenant behind, requests",
        ),
    )
    ahead = {
        phase: [light - flood for light, flood in zip(run["served"]["light"], run["served"]["flood"], strict=True)]
        for phase, run in runs.items()
    }
    curves = {phase: (range(len(tokens)), tokens) for phase, tokens in ahead.items()}
    panels = [Panel("while both wait", "tokens of the light tenant minus the flood's", "steps", curves, steps=True)]
    picture(report, panels, "tenants.png", "Which tenant is ahead, by policy")
    return {
        phase.replace("-", "_"): {
            "behind": run["behind"],
            "apart": run["apart"],
            "light_ttft_ms": run["light"]["ttft_ms"],
            "flood_ttft_ms": run["flood"]["ttft_ms"],
        }
        for phase, run in runs.items()
    }


def triton(report, runs):
    """5. What Triton's cache, queue and rate limiter did in front of the engine."""
    run = runs["triton"]
    cache, first, queue, jobs = run["cache"], run["priorities"], run["rejected"], run["limited"]
    places = ", ".join(map(str, first["places"]))
    report.table(
        "5. Triton's cache, queue and rate limiter, in front of the engine",
        [
            (
                "response cache",
                f"{cache['hits']:.0f} hits, {cache['misses']:.0f} computed",
                f"{cache['first_ms']:.1f} -> {cache['again_ms']:.1f} ms",
            ),
            (
                "priority levels",
                f"urgent requests behind {first['usual']} others were executed as number {places}",
                "the others wait correspondingly longer",
            ),
            (
                "queue policy",
                f"{queue['rejected']:.0f} of {queue['came']} rejected; {queue['room']} may wait",
                "the client must send a rejected request again",
            ),
            (
                "rate limiter",
                f"of 3 instances {jobs['at_once']} ran at a time",
                f"an answer beside them: {jobs['alone_ms']:.0f} -> {jobs['beside_ms']:.0f} ms",
            ),
        ],
        ("what", "counted", "gain or cost"),
        left=3,
    )
    panels = [
        Panel(
            "the same text again",
            "ms",
            names=["latency"],
            bars={"computed": [cache["first_ms"]], "from the cache": [cache["again_ms"]]},
        ),
        Panel(
            "a short answer",
            "ms",
            names=["latency"],
            bars={"alone": [jobs["alone_ms"]], "beside night jobs": [jobs["beside_ms"]]},
        ),
    ]
    picture(report, panels, "triton.png", "What Triton does before the engine")
    return {key: run[key] for key in ("cache", "priorities", "rejected", "limited")}


def numbers(run):
    """The numbers and texts of a phase, without its lists of requests."""
    return {key: value for key, value in run.items() if not isinstance(value, list | dict)}


def picture(report, panels, name, title):
    draw_panels(panels, report.out / name, title)
    report.say(f"![{title}]({name})")
