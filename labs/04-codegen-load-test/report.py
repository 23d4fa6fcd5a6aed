"""Lab 04's report: the same load with and without dynamic batching, side by side. Run by ``labctl run codegen``."""

import sys
from pathlib import Path

from labkit.evidence import loadplot
from labkit.evidence.records import Lane
from labkit.evidence.report import Report

BATCHED, UNBATCHED = "batching", "one-by-one"
LINES = {BATCHED: "dynamic batching", UNBATCHED: "one by one"}  # their names in the picture of users
GENERATOR = "codegen-350M-mono-gptj"
HEADER = (
    "tokens",
    "batches",
    "users",
    "RPS",
    "p50 ms",
    "p95 ms",
    "inference / exec count",
    "mean batch",
    "queue ms",
    "preprocessing",
    "postprocessing",
)


def row(tokens: str, phase: str, run: dict) -> tuple:
    """A line of the summary: the last step, and Triton's counters over the whole load."""
    last, model, shares = run["steps"][-1], run["models"][GENERATOR], run["shares"]
    latency = last["request_latency"]
    return (
        tokens,
        phase,
        last["users"],
        f"{last['requests_per_second']:.0f}",
        f"{latency['p50']:.0f}",
        f"{latency['p95']:.0f}",
        f"{model['inferences']:.0f} / {model['exec_count']:.0f}",
        f"{last['generator']['mean_batch']:.1f}",
        f"{last['generator']['queue_ms']:.1f}",
        f"{shares['preprocessing']:.2%}",
        f"{shares['postprocessing']:.2%}",
    )


def numbers(run: dict) -> dict:
    """The numbers of a load for result.json: every step by its users, the counters, the shares."""
    return {
        "steps": {str(step["users"]): {k: v for k, v in step.items() if k != "users"} for step in run["steps"]},
        "last": run["steps"][-1],
        "models": run["models"],
        "shares": {**run["shares"], "both": sum(run["shares"].values())},
    }


def compare(one_by_one: dict, batching: dict) -> dict:
    """The last step with and without dynamic batching; the verdict judges the length that gains least."""
    last = {t: (one_by_one[t]["steps"][-1], batching[t]["steps"][-1]) for t in batching}
    ratios = {t: one["requests_per_second"] / other["requests_per_second"] for t, (one, other) in last.items()}
    tokens = max(ratios, key=lambda t: ratios[t])
    one, other = last[tokens]
    return {
        "rps_without_over_with": ratios,
        "worst": ratios[tokens],
        "worst_tokens": int(tokens),
        "worst_mean_batch": other["generator"]["mean_batch"],
        "worst_rps_with": other["requests_per_second"],
        "worst_rps_without": one["requests_per_second"],
        "mean_batch": min(other["generator"]["mean_batch"] for _, other in last.values()),
        "users": other["users"],
        "most_rps": max(step["requests_per_second"] for pair in last.values() for step in pair),
    }


def main() -> None:
    report = Report(Path(sys.argv[1]), "Lab 04: a load test with dynamic batching", (BATCHED, UNBATCHED))
    phases = {name: phase["lengths"] for name, phase in report.phases.items()}
    ceilings = {name: phase["ceiling"] for name, phase in report.phases.items()}
    metrics: dict = {
        name.replace("-", "_"): {t: numbers(run) for t, run in runs.items()} for name, runs in phases.items()
    }
    lengths = [*next(iter(phases.values()))]
    if len(phases) == 2:
        metrics["comparison"] = compare(phases[UNBATCHED], phases[BATCHED])
        ceiling = min(min(found.values()) for found in ceilings.values())
        metrics["load_generator"] = {
            "ceiling": ceiling,
            "by_protocol": {name: max(c[name] for c in ceilings.values()) for name in ceilings[BATCHED]},
            "over_needed": ceiling / metrics["comparison"]["most_rps"],
        }
    report.say(
        "RPS, latency, mean batch and queue time are those of the last step; the counts are those of the whole load. "
        "Pre- and postprocessing are shares of the generator's inference time."
    )
    rows = [row(t, name, runs[t]) for t in lengths for name, runs in phases.items()]
    report.table("With and without dynamic batching", rows, HEADER, left=2)
    report.say(
        "The load generator alone, on a model that does nothing: "
        + "; ".join(
            f"{phase}: " + ", ".join(f"{name} {value:.0f} requests/s" for name, value in found.items())
            for phase, found in ceilings.items()
        )
    )
    columns = {f"{t} tokens": {name: runs[t]["seconds"] for name, runs in phases.items()} for t in lengths}
    loadplot.draw_load_steps(columns, report.out / "timeline.png", "A stepped load, with and without dynamic batching")
    longest = lengths[-1]
    title = f"Answers of {longest} tokens, while users are added"
    loadplot.draw_by_users(
        {LINES[name]: runs[longest]["seconds"] for name, runs in phases.items()}, report.out / "users.png", title
    )
    report.say(f"![{title}](users.png)")
    lanes = [Lane.from_json(f"{name}, {t} tokens", runs[t]["trace"]) for name, runs in phases.items() for t in lengths]
    report.finish(metrics, lanes, "timeline.png", "the last second of each load")


if __name__ == "__main__":
    main()
