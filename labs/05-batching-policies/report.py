"""Lab 05's report: both tables side by side, requests in flight and batch sizes over time, the two policies."""

import sys
from pathlib import Path

from labctl.measure import results
from labctl.measure.evidence.steplog import Step
from labctl.measure.pictures import batches, perfetto
from labctl.measure.pictures.timeline import Lane
from labctl.measure.records import RequestRecord
from labctl.measure.workloads import identity
from labctl.tables import markdown, table

STATIC, INFLIGHT, NO_EVICT, UTILIZATION = "static", "inflight", "no-evict", "max-utilization"
SHORT = {
    "Requests/Sec": "requests_per_second",
    "OP tokens/sec": "tokens_per_second",
    "Avg. latency (ms)": "average_latency",
    "P99 latency (ms)": "p99_latency",
    "Avg. InFlight requests": "average_inflight",
}


def lane(run: dict, title: str) -> Lane:
    return Lane(title, [RequestRecord(**r) for r in run["records"]], [Step(**step) for step in run["steps"]])


def main() -> None:
    out = Path(sys.argv[1])
    phases = {n: results.read_phase(out, n)["workloads"] for n in (STATIC, INFLIGHT, NO_EVICT, UTILIZATION)
              if results.has_phase(out, n)}  # fmt: skip
    metrics: dict = {"ratios": {}, "policies": {}}
    text = ["# Lab 05: batching policies", ""]
    lanes = []

    def show(title: str, rows: list, header: tuple) -> None:
        print(f"\n{title}\n" + table(rows, header, right=range(1, len(header))))
        text.extend([f"## {title}", "", markdown(rows, header), ""])

    if STATIC in phases and INFLIGHT in phases:
        for name, static in phases[STATIC].items():
            inflight = phases[INFLIGHT][name]
            one, other = static["table"], inflight["table"]
            rows = [(r, f"{one[r]:,.2f}", f"{other[r]:,.2f}", f"{other[r] / one[r]:.3f}") for r in identity.ROWS]
            metrics["ratios"][name] = {short: other[row] / one[row] for row, short in SHORT.items()}
            if "steps" in static["scheduling"] and "steps" in inflight["scheduling"]:
                steps = static["scheduling"]["steps"], inflight["scheduling"]["steps"]
                rows.append(("Engine steps", f"{steps[0]:,}", f"{steps[1]:,}", f"{steps[1] / steps[0]:.3f}"))
                metrics["ratios"][name]["engine_steps"] = steps[1] / steps[0]
            show(f"{name}: V1 against inflight_fused_batching", rows, ("", STATIC, INFLIGHT, "ratio"))
            lanes += [lane(static, f"{name}, V1"), lane(inflight, f"{name}, inflight_fused_batching")]
    for phase, workloads in phases.items():
        metrics[phase.replace("-", "_")] = {
            name: {short: run["table"][row] for row, short in SHORT.items()} | run["scheduling"]
            for name, run in workloads.items()
        }
    policies = [phase for phase in (NO_EVICT, UTILIZATION) if phase in phases]
    for phase in policies:
        run = phases[phase]["chat"]
        metrics["policies"][phase] = run["scheduling"] | {short: run["table"][row] for row, short in SHORT.items()}
        blocks = f"{run['scheduling']['kv_blocks']} KV blocks" if run["scheduling"] else "a small KV cache"
        lanes.append(lane(run, f"chat, {blocks}, {phase}"))
    if policies:
        names = ("requests_per_second", "average_latency", "steps", "mean_batch", "max_kv_blocks_used", "preemptions")
        known = [n for n in names if all(n in metrics["policies"][p] for p in policies)]
        rows = [(n, *(f"{metrics['policies'][p][n]:,.2f}" for p in policies)) for n in known]
        show("A small KV cache: guaranteed_no_evict against max_utilization", rows, ("", *policies))

    first = next(iter(phases))
    context = results.context_of(out, first)
    triton = results.read_phase(out, first)["triton"]
    results.write_result(out, context["lab"], context["settings"], metrics, triton)
    batches.draw(lanes, out / "timeline.png", "Requests in flight and batch size")
    perfetto.write(lanes, out / "trace.json")
    text += ["![timeline](timeline.png)", "", "`trace.json` opens in https://ui.perfetto.dev.", ""]
    (out / "report.md").write_text("\n".join(text), encoding="utf-8")


if __name__ == "__main__":
    main()
