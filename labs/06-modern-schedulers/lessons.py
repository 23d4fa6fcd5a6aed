"""What the phases of each lesson add up to: a table, a picture, and the numbers for its verdicts.

Counts are of the step log; an engine of NVIDIA's writes none, and then there is a dash in their place.
"""

from labkit.pictures.panels import Panel, draw

NONE = "-"


def chunked(report, runs):
    """1. What a step may compute, against the longest gap of a decoding request and the first token of a new one."""
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
    found["gap_ms_ratio"] = points[0]["longest_gap_ms"] / points[-1]["longest_gap_ms"]
    times = {
        "longest gap of a decoding request": (budgets, [run["longest_gap_ms"] for run in points]),
        "first token of a new request": (budgets, [run["ttft_ms"] for run in points]),
    }
    panels = [
        Panel("a smaller budget: shorter gaps, a later first token", "ms", "tokens of a step, at most", times, log=True)
    ]
    if all("largest_step" in run for run in points):
        found["over_budget"] = max(run["largest_step"] - run["budget"] for run in points)
        found["work_ratio"] = points[0]["largest_step"] / points[-1]["largest_step"]
        work = {"computed": (budgets, [run["largest_step"] for run in points])}
        title = "most work between two tokens of a decoding request"
        panels.insert(0, Panel(title, "tokens", "tokens of a step, at most", work, log=True))
    picture(report, panels, "chunked.png", "A token budget for every step")
    return found


def prefix(report, runs):
    """2. What of the prompts was computed, and the time to the first token."""
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
    every = [(phase, order, one) for phase, run in runs.items() for order, one in run["orders"].items()]
    labels = [f"{phase.removeprefix('prefix-')}\n{order}" for phase, order, _ in every]
    times = {label: [one["ttft_ms"]] for label, (*_, one) in zip(labels, every, strict=True)}
    panels = [Panel("time to first token, without the first", "ms", bars=times, names=["TTFT"])]
    if all("computed" in one for *_, one in every):
        computed = {label: [one["computed"]] for label, (*_, one) in zip(labels, every, strict=True)}
        panels.insert(0, Panel("prompt tokens computed", "tokens", bars=computed, names=["computed"]))
    picture(report, panels, "prefix.png", "Prompts that begin alike")
    if {"off", "on"} <= found.keys():
        off, on = found["off"]["one"], found["on"]["one"]
        found["ttft_ratio"] = off["ttft_ms"] / on["ttft_ms"]
        if "computed" in on:
            found["saved"] = off["computed"] / on["computed"]
    if {"on", "small"} <= found.keys():
        found["lost"] = found["on"]["turn"]["hit_rate"] - found["small"]["turn"]["hit_rate"]
    return found


TITLES = {"one": "one", "turn": "four, in turn", "sorted": "four, sorted"}


def speculation(report, runs):
    """3. Steps for a token, guesses that were right, and what comes of it in tokens per second."""
    plain, rows, found = runs.get("plain"), [], {}
    for phase, run in runs.items():
        for batch, one in run["batches"].items():
            base = (plain or run)["batches"][batch]
            same = sum(a == b for a, b in zip(one["answers"], base["answers"], strict=True))
            times = one["tokens_per_s"] / base["tokens_per_s"]
            guesses = f"{one['accepted']:,} of {one['guessed']:,}" if one.get("guessed") else NONE
            rows.append(
                (
                    phase,
                    batch,
                    f"{one['steps_per_token']:.2f}",
                    guesses,
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
        "3. Speculation: several tokens of a request in one step",
        rows,
        ("phase", "batch", "steps per token", "guesses accepted", "tokens/s", "times plain", "same answers"),
        left=1,
    )
    batches = list(next(iter(runs.values()))["batches"])

    def bars(key):
        return {f"batch {b}": [run["batches"][b][key] for run in runs.values()] for b in batches}

    panels = [
        Panel("steps of a request for a token", "steps", bars=bars("steps_per_token"), names=list(runs)),
        Panel("tokens a second", "tokens/s", bars=bars("tokens_per_s"), names=list(runs)),
    ]
    picture(report, panels, "speculation.png", "Guess, and check several tokens at once")
    return found


def tenants(report, runs):
    """4. What each tenant was served while both waited."""
    report.table(
        "4. Who goes first: one tenant floods, another asks for little",
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
            "light one's TTFT, ms",
            "flood done, ms",
            "served while both wait",
            "light one behind by requests",
        ),
    )
    panels = [
        Panel(
            phase,
            "served, tokens",
            "steps since the first joined",
            {tenant: (range(len(made)), made) for tenant, made in run["served"].items()},
            steps=True,
        )
        for phase, run in runs.items()
    ]
    picture(report, panels, "tenants.png", "What each tenant was served while both waited")
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
    """5. What Triton's own queue did at the door."""
    run = runs["triton"]
    cache, first, queue, jobs = run["cache"], run["priorities"], run["rejected"], run["limited"]
    report.table(
        "5. Triton's own, in front of the engine and beside it",
        [
            (
                "response cache",
                f"{cache['hits']:.0f} hits, {cache['misses']:.0f} computed",
                f"{cache['first_ms']:.1f} -> {cache['again_ms']:.1f} ms",
            ),
            (
                "priority levels",
                f"behind {first['usual']} others, the urgent went in as {', '.join(map(str, first['places']))}",
                "the others wait as much longer",
            ),
            (
                "queue policy",
                f"{queue['rejected']:.0f} of {queue['came']} rejected; {queue['room']} may wait",
                "a rejected request is sent again",
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
    """What of a phase is a number or a text: no lists of requests."""
    return {key: value for key, value in run.items() if not isinstance(value, list | dict)}


def picture(report, panels, name, title):
    draw(panels, report.out / name, title)
    report.say(f"![{title}]({name})")
