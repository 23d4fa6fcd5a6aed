"""What the parts of lab 08 add up to: a table for each, and the numbers for the verdicts. All of it is counted."""

import textwrap
from itertools import pairwise, zip_longest

from labkit.client.trtllm import BLOCK
from labkit.evidence.panels import Panel, draw_panels

OURS = {"vllm": "vLLM", "ours": "ours"}
SHOWN = 2  # steps behind the first that differs


def trace(report, runs):
    """1. The same requests under both: side by side up to the first difference, and what preemption cost."""
    vllm, ours = (runs[name]["steps"] for name in OURS)
    found = {name: preemption(runs[name]) for name in OURS}
    at = next((n for n, pair in enumerate(zip_longest(vllm, ours)) if differ(*pair)), len(vllm))
    rows = [(span, text(vllm[n]), text(ours[n])) for span, n in spans(vllm, ours, at + SHOWN)]
    report.table("1. Your trace: tokens computed for each request", rows, ("steps", "vLLM", "ours"), left=3)
    reserved = 0
    if at < min(len(vllm), len(ours)):
        reserved = ours[at]["because"].get("reserve", 0)
        said = f"The schedulers part at step {at + 1}. vLLM: {reason(vllm[at])}. Ours: {reason(ours[at])}."
        report.say(said)
        print(textwrap.fill(said, 79, subsequent_indent="  ", break_on_hyphens=False))
    columns = ("scheduler", "steps", "tokens computed", "preemptions", "computed again", "share of all")
    report.table("2. What preemption cost", [(OURS[name], *cost(run)) for name, run in found.items()], columns)
    picture(report, {name: runs[name]["steps"] for name in OURS})
    return {"alike": at, "reserved": reserved, **found}


def preemption(run):
    """Tokens that were computed again: all computed tokens, less the tokens that each request needs once."""
    computed = sum(sum(step["computed"].values()) for step in run["steps"])
    once = sum(prompt + answer - 1 for prompt, answer in run["asked"].values())
    return {
        "steps": len(run["steps"]),
        "computed": computed,
        "preempted": sum(len(step["preempted"]) for step in run["steps"]),
        "recomputed": computed - once,
        "tax": (computed - once) / computed,
    }


def cost(run):
    return run["steps"], f"{run['computed']:,}", run["preempted"], f"{run['recomputed']:,}", f"{run['tax']:.0%}"


def differ(one, other):
    return one is None or other is None or one["computed"] != other["computed"]


def spans(vllm, ours, last):
    """The steps up to `last`, by number. Consecutive steps that are alike on both sides are one row."""
    pairs = list(zip(vllm, ours, strict=False))[: last + 1]
    starts = [n for n, pair in enumerate(pairs) if n == 0 or any(map(differ, pair, pairs[n - 1]))]
    for start, after in pairwise([*starts, len(pairs)]):
        yield f"{start + 1}-{after}" if after > start + 1 else f"{after}", start


def text(step):
    said = " ".join(f"{name}:{count}" for name, count in step["computed"].items())
    return f"{said} (preempts {', '.join(step['preempted'])})" if step["preempted"] else said


def reason(step):
    """What a step computes, and why the first waiting request is not in it."""
    if not step["waiting"]:
        return f"computes {text(step)}; no request waits"
    numbers = ", ".join(f"{name} {count}" for name, count in step["because"].items())
    return f"computes {text(step)}; {step['waiting'][0]} waits: {step['why']}{numbers and f' ({numbers})'}"


def picture(report, steps):
    """How many requests each step computes, and how many wait."""
    panels = [
        Panel(title, "requests", "step", {OURS[name]: curve(run, key) for name, run in steps.items()}, steps=True)
        for title, key in (("in the batch", "computed"), ("waiting", "waiting"))
    ]
    draw_panels(panels, report.out / "schedulers.png", "One trace, two schedulers")
    report.say("![One trace, two schedulers](schedulers.png)")


def curve(steps, key):
    return range(1, len(steps) + 1), [len(step[key]) for step in steps]


def chunked(report, runs):
    """3. A long prompt beside a request that decodes, within the budget of a step."""
    budget, found = int(report.settings["max_num_tokens"]), {}
    rows = []
    for name, run in runs.items():
        pieces = [step["computed"]["long"] for step in run["steps"] if step["computed"].get("long", 0) > 1]
        largest = max(sum(step["computed"].values()) for step in run["steps"])
        found |= {name: len(pieces), "over_budget": max(found.get("over_budget", 0), largest - budget)}
        rows.append((OURS[name], len(pieces), " ".join(map(str, pieces)), largest))
    columns = ("scheduler", "steps of the prompt", "its pieces", "largest step")
    report.table(f"3. Chunked prefill with a budget of {budget} tokens", rows, columns, left=1)
    return {"prompt": runs["vllm"]["asked"]["long"][0], "budget": budget, **found}


def prefix(report, runs):
    """4. How much of a known prefix is found in the cache, in blocks of 32 tokens."""
    hits = {
        name: {key: count for step in run["steps"] for key, count in step["found"].items()}
        for name, run in runs.items()
    }
    prompts = {request: prompt for request, (prompt, _) in runs["vllm"]["asked"].items()}
    rows = [(request, prompt, *(hits[name].get(request, 0) for name in hits)) for request, prompt in prompts.items()]
    report.table("4. Prefix caching: tokens found", rows, ("request", "prompt", *(OURS[name] for name in hits)))
    return {
        name: {"found": sum(counts.values()), "beyond_whole_blocks": sum(count % BLOCK for count in counts.values())}
        for name, counts in hits.items()
    }


def urgent(report, runs):
    """5. Three urgent requests behind four others: which begin first, and which are preempted."""
    found, rows = {}, []
    for name, run in runs.items():
        begun = list(dict.fromkeys(request for step in run["steps"] for request in step["computed"]))
        victims = [request for step in run["steps"] for request in step["preempted"]]
        first = {request: at for at, step in reversed(list(enumerate(run["steps"]))) for request in step["computed"]}
        last = max(at for request, at in first.items() if request.startswith("urgent"))
        before = sum(at < last for request, at in first.items() if request.startswith("usual"))
        found[name] = {"before": before, "victims": sum(victim.startswith("urgent") for victim in victims)}
        rows.append((TITLES[name], ", ".join(begun), ", ".join(victims) or "-"))
    report.table("5. Priority", rows, ("scheduler", "began in this order", "preempted"), left=3)
    usual = sum(name.startswith("usual") for name in next(iter(runs.values()))["asked"])
    return {"usual": usual, **found}


TITLES = {"fcfs": "vLLM, fcfs", "priority": "vLLM, priority", "ours": "ours, priority"}
