"""Lab 05's report: both tables side by side, requests in flight and batch sizes over time, the two policies."""

import sys
from pathlib import Path

from labkit.client import dataset, identity
from labkit.evidence import batches
from labkit.evidence.records import Lane
from labkit.evidence.report import Report

STATIC, INFLIGHT, NO_EVICT, UTILIZATION = "static", "inflight", "no-evict", "max-utilization"
SHORT = {
    "Requests/Sec": "requests_per_second",
    "OP tokens/sec": "tokens_per_second",
    "Avg. latency (ms)": "average_latency",
    "P99 latency (ms)": "p99_latency",
    "Avg. InFlight requests": "average_inflight",
}

# The workshop's figures of 2023: TensorRT-LLM 0.5.0, Llama-2 7B in fp16, one H100, batches of at most 8.
PUBLISHED = {"Requests/Sec": (8.06, 10.52), "Avg. latency (ms)": (6285, 5121), "P99 latency (ms)": (12114, 9277)}
WHY = (
    "Another engine, so equal seconds would be chance. What differs: the kernels and how they are launched (a CUDA\n"
    "graph of a whole step, or one kernel after the other from Python), prompts, whose steps are never graphs here,\n"
    "and how many requests a batch may have. What does not: the requests, and the steps that either scheduler needs."
)


def in_digits(value: float) -> str:
    """A count without decimals."""
    return f"{value:,.0f}" if value == int(value) else f"{value:,.2f}"


def main() -> None:
    report = Report(Path(sys.argv[1]), "Lab 05: batching policies", (STATIC, INFLIGHT, NO_EVICT, UTILIZATION))
    phases = {name: phase["workloads"] for name, phase in report.phases.items()}
    metrics: dict = {"ratios": {}, "policies": {}}
    lanes = []
    if STATIC in phases and INFLIGHT in phases:
        for name, static in phases[STATIC].items():
            inflight = phases[INFLIGHT][name]
            one, other = static["table"], inflight["table"]
            rows = [(r, f"{one[r]:,.2f}", f"{other[r]:,.2f}", f"{other[r] / one[r]:.3f}") for r in identity.ROWS]
            metrics["ratios"][name] = {short: other[row] / one[row] for row, short in SHORT.items()}
            if "steps" in static["scheduling"] and "steps" in inflight["scheduling"]:
                steps = static["scheduling"]["steps"], inflight["scheduling"]["steps"]
                rows.append(("Engine steps", f"{steps[0]:,.0f}", f"{steps[1]:,.0f}", f"{steps[1] / steps[0]:.3f}"))
                metrics["ratios"][name]["engine_steps"] = steps[1] / steps[0]
            report.table(f"{name}: V1 against inflight_fused_batching", rows, ("", STATIC, INFLIGHT, "ratio"))
            if (
                name == "articles" and abs(one["Avg. IP tokens per request"] - dataset.PUBLISHED[0]) < 1
            ):  # in full length
                beside = [
                    (row, *(f"{number:,.2f}" for number in (*said, said[1] / said[0], one[row], other[row])))
                    for row, said in PUBLISHED.items()
                ]
                head = ("", "published V1", "in-flight", "ratio", "measured here: V1", "in-flight")
                report.table("The published test, and this one", beside, head)
                report.say(WHY)
            lanes += [
                Lane.from_json(f"{name}, V1", static),
                Lane.from_json(f"{name}, inflight_fused_batching", inflight),
            ]
    else:  # one stack was run alone
        for phase, title in ((STATIC, "V1"), (INFLIGHT, "inflight_fused_batching")):
            for name, run in phases.get(phase, {}).items():
                lanes.append(Lane.from_json(f"{name}, {title}", run))
                rows = [(row, f"{run['table'][row]:,.2f}") for row in identity.ROWS]
                report.table(f"{name}: {title}", rows, ("", phase))
    for phase, workloads in phases.items():
        metrics[phase.replace("-", "_")] = {
            name: {short: run["table"][row] for row, short in SHORT.items()} | run["scheduling"]
            for name, run in workloads.items()
        }
    policies = [phase for phase in (NO_EVICT, UTILIZATION) if phase in phases]
    for phase in policies:
        run = phases[phase]["chat"]
        metrics["policies"][phase] = run["scheduling"] | {short: run["table"][row] for row, short in SHORT.items()}
        blocks = f"{run['scheduling']['kv_blocks']:.0f} KV blocks" if run["scheduling"] else "a small KV cache"
        lanes.append(Lane.from_json(f"chat, {blocks}, {phase}", run))
    if policies:
        names = ("requests_per_second", "average_latency", "steps", "mean_batch", "max_kv_blocks_used", "preemptions")
        known = [n for n in names if all(n in metrics["policies"][p] for p in policies)]
        units = {"average_latency": "average_latency, ms"}
        rows = [(units.get(n, n), *(in_digits(metrics["policies"][p][n]) for p in policies)) for n in known]
        report.table("A small KV cache: guaranteed_no_evict against max_utilization", rows, ("", *policies))
    batches.draw_batches(lanes, report.out / "timeline.png", "Requests in flight and batch size")
    report.finish(metrics, lanes, "timeline.png")


if __name__ == "__main__":
    main()
