"""Lab 04's report: the same load with and without dynamic batching, side by side. Run by ``labctl run codegen``."""

import sys
from pathlib import Path

from labctl.measure import results
from labctl.measure.evidence.steplog import Step
from labctl.measure.pictures import loadplot, perfetto
from labctl.measure.pictures.timeline import Lane
from labctl.measure.records import RequestRecord
from labctl.tables import markdown, table

BATCHED, UNBATCHED = "batching", "one-by-one"
GENERATOR = "codegen-350M-mono-gptj"


def row(tokens: str, phase: str, run: dict) -> tuple:
    """A line of the summary: the last step, and Triton's counters over the whole load."""
    last, model, shares = run["steps"][-1], run["models"][GENERATOR], run["shares"]
    latency = last["request_latency"]
    return (
        tokens, phase, last["users"], f"{last['requests_per_second']:.0f}", f"{latency['p50']:.0f}",
        f"{latency['p95']:.0f}", f"{model['inferences']:.0f} / {model['exec_count']:.0f}",
        f"{last['generator']['mean_batch']:.1f}", f"{last['generator']['queue_ms']:.1f}",
        f"{shares['preprocessing']:.2%}", f"{shares['postprocessing']:.2%}",
    )  # fmt: skip


def numbers(run: dict) -> dict:
    """What of a load goes into result.json: every step by its users, the counters, the shares."""
    return {
        "steps": {str(step["users"]): {k: v for k, v in step.items() if k != "users"} for step in run["steps"]},
        "last": run["steps"][-1],
        "models": run["models"],
        "shares": {**run["shares"], "both": sum(run["shares"].values())},
    }


def lane(run: dict, title: str) -> Lane:
    trace = run["trace"]
    return Lane(title, [RequestRecord(**r) for r in trace["records"]], [Step(**step) for step in trace["steps"]])


def main() -> None:
    out = Path(sys.argv[1])
    phases = {n: results.read_phase(out, n) for n in (BATCHED, UNBATCHED) if results.has_phase(out, n)}
    metrics = {
        name.replace("-", "_"): {t: numbers(run) for t, run in p["lengths"].items()} for name, p in phases.items()
    }
    lengths = [*next(iter(phases.values()))["lengths"]]
    if len(phases) == 2:
        one, other = (phases[name]["lengths"] for name in (UNBATCHED, BATCHED))

        def last(runs: dict, tokens: str) -> dict:
            return runs[tokens]["steps"][-1]

        rps = {t: (last(one, t)["requests_per_second"], last(other, t)["requests_per_second"]) for t in lengths}
        ceiling = min(min(phase["ceiling"].values()) for phase in phases.values())
        metrics["comparison"] = {
            "rps_without_over_with": {t: a / b for t, (a, b) in rps.items()},
            "worst": max(a / b for a, b in rps.values()),
            "mean_batch": min(last(other, t)["generator"]["mean_batch"] for t in lengths),
            "users": last(other, lengths[0])["users"],
        }
        metrics["load_generator"] = {
            "ceiling": ceiling,
            "by_protocol": {n: max(p["ceiling"][n] for p in phases.values()) for n in phases[BATCHED]["ceiling"]},
            "over_needed": ceiling / max(max(pair) for pair in rps.values()),
        }
    first = next(iter(phases))
    context = results.context_of(out, first)
    results.write_result(out, context["lab"], context["settings"], metrics, phases[first]["triton"])

    rows = [row(t, name, phase["lengths"][t]) for t in lengths for name, phase in phases.items()]
    header = ("tokens", "batches", "users", "RPS", "p50 ms", "p95 ms", "inference / exec count", "mean batch",
              "queue ms", "preprocessing", "postprocessing")  # fmt: skip
    columns = {f"{t} tokens": {name: p["lengths"][t]["seconds"] for name, p in phases.items()} for t in lengths}
    loadplot.draw(columns, out / "timeline.png", "A stepped load, with and without dynamic batching")
    lanes = [lane(p["lengths"][t], f"{name}, {t} tokens") for name, p in phases.items() for t in lengths]
    perfetto.write([lane for lane in lanes if lane.records], out / "trace.json")
    text = [
        "# Lab 04: a load test with dynamic batching",
        "",
        "RPS, latency, mean batch and queue time are those of the last step; the counts are those of the whole load.",
        "Pre- and postprocessing as shares of the generator's inference time.",
        "",
        markdown(rows, header),
        "",
        "The load generator alone, on a model that does nothing: "
        + "; ".join(
            f"{phase}: " + ", ".join(f"{name} {value:.0f} requests/s" for name, value in found["ceiling"].items())
            for phase, found in phases.items()
        ),
        "",
        "![timeline](timeline.png)",
        "",
        "`trace.json`, the last second of each load, opens in https://ui.perfetto.dev.",
    ]
    (out / "report.md").write_text("\n".join(text) + "\n", encoding="utf-8")
    print("\nWith and without dynamic batching\n" + table(rows, header, right=(2, 3, 4, 5, 7, 8, 9, 10)))


if __name__ == "__main__":
    main()
