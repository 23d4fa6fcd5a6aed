"""Lab 03's report: both ways of Hugging Face and the engine side by side. Run by ``labctl run llama``."""

import sys
from pathlib import Path

from labkit.evidence import batches
from labkit.evidence.records import Lane
from labkit.evidence.report import Report

UNBATCHED, BATCHED, ENGINE = "llama-python", "llama-python-batched", "ensemble"
PHASES = ("default", "exact", "streaming")
HEADER = ("phase", "model", "total latency ms", "TTFT p50 ms", "tokens/s", "times llama-python")


def main() -> None:
    report = Report(Path(sys.argv[1]), "Lab 03: Hugging Face against a compiled engine", PHASES)
    metrics: dict = {}
    rows = []
    for name, phase in report.phases.items():
        models = phase["models"]
        metrics[name] = {model.replace("-", "_"): totals for model, totals in models.items()}
        base = models.get(UNBATCHED, {}).get("benchmark_duration")
        for model, totals in models.items():
            seconds = totals["benchmark_duration"]
            first = f"{totals['time_to_first_token']['p50']:.0f}" if name == "streaming" else "-"
            times = f"{base / seconds:.2f}" if base else "-"
            rows.append((name, model, f"{seconds * 1e3:.1f}", first, f"{totals['output_token_throughput']:.1f}", times))
        if base:
            metrics[name]["engine_over_hf"] = base / models[ENGINE]["benchmark_duration"]
            metrics[name]["batching_alone"] = base / models[BATCHED]["benchmark_duration"]
            metrics[name]["engine_over_batched_hf"] = (
                models[BATCHED]["benchmark_duration"] / models[ENGINE]["benchmark_duration"]
            )
            places = phase["divergence"]
            metrics[name]["agreeing"] = sum(place is None for place in places) / len(places)
    report.say(
        f"{report.settings['prompts']} prompts at once, {report.settings['output_tokens']} tokens each. "
        "llama-python has no batching, as in the published comparison, where the engine was 4.18 times as fast. "
        "llama-python-batched separates what batching gives from what the engine gives."
    )
    report.table("Hugging Face against the engine", rows, HEADER, left=2)
    for name, phase in report.phases.items():
        if apart := [place for place in phase.get("divergence", []) if place is not None]:
            report.say(
                f"{name}: {len(apart)} answers differ from Hugging Face's, the first from token {min(apart)} on."
            )
    lanes = {
        name: [
            Lane.from_json(f"{name}: {model}, {phase['models'][model]['benchmark_duration']:.1f} s", lane)
            for model, lane in phase["lanes"].items()
        ]
        for name, phase in report.phases.items()
    }
    batches.draw_grid(
        lanes, report.out / "timeline.png", "Requests in flight and batch size; each on its own time scale"
    )
    report.finish(metrics, [lane for row in lanes.values() for lane in row], "timeline.png")


if __name__ == "__main__":
    main()
