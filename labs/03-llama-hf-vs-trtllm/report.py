"""Lab 03's report: both ways of Hugging Face and the engine side by side. Run by ``labctl run llama``."""

import sys
from pathlib import Path

from labctl.measure import results
from labctl.measure.evidence.steplog import Step
from labctl.measure.pictures import batches, perfetto
from labctl.measure.pictures.timeline import Lane
from labctl.measure.records import RequestRecord
from labctl.tables import markdown, table

UNBATCHED, BATCHED, ENGINE = "llama-python", "llama-python-batched", "ensemble"
PHASES = ("default", "exact", "streaming")


def lane(phase: str, model: str, seen: dict) -> Lane:
    records = [RequestRecord(**record) for record in seen["records"]]
    return Lane(f"{phase}: {model}", records, [Step(**step) for step in seen["steps"]])


def main() -> None:
    out = Path(sys.argv[1])
    phases = {name: results.read_phase(out, name) for name in PHASES if results.has_phase(out, name)}
    metrics: dict = {}
    rows = []
    for name, phase in phases.items():
        models = phase["models"]
        metrics[name] = {model.replace("-", "_"): found for model, found in models.items()}
        base = models.get(UNBATCHED, {}).get("benchmark_duration")
        for model, found in models.items():
            total = found["benchmark_duration"]
            first = f"{found['time_to_first_token']['p50']:.0f}" if name == "streaming" else "-"
            times = f"{base / total:.2f}" if base else "-"
            rows.append((name, model, f"{total * 1e3:.1f}", first, f"{found['output_token_throughput']:.1f}", times))
        if base:
            metrics[name]["engine_over_hf"] = base / models[ENGINE]["benchmark_duration"]
            metrics[name]["batching_alone"] = base / models[BATCHED]["benchmark_duration"]
            metrics[name]["engine_over_batched_hf"] = (
                models[BATCHED]["benchmark_duration"] / models[ENGINE]["benchmark_duration"]
            )
            places = phase["divergence"]
            metrics[name]["agreeing"] = sum(place is None for place in places) / len(places)
    first_phase = next(iter(phases))
    context = results.context_of(out, first_phase)
    results.write_result(out, context["lab"], context["settings"], metrics, phases[first_phase]["triton"])
    header = ("phase", "model", "total latency ms", "TTFT p50 ms", "tokens/s", "times llama-python")
    print("\nHugging Face against the engine\n" + table(rows, header, right=(2, 3, 4, 5)))
    text = [
        "# Lab 03: Hugging Face against a compiled engine",
        "",
        f"{context['settings']['prompts']} prompts at once, {context['settings']['output_tokens']} tokens each. "
        "llama-python has no batching, as published (4.18 times there); llama-python-batched tells batching and engine "
        "apart.",
        "",
        markdown(rows, header),
        "",
    ]
    for name, phase in phases.items():
        if apart := [place for place in phase.get("divergence", []) if place is not None]:
            text.append(f"{name}: {len(apart)} answers part ways with Hugging Face's, the first at token {min(apart)}.")
    lanes = [lane(name, model, seen) for name, phase in phases.items() for model, seen in phase["lanes"].items()]
    batches.draw(lanes, out / "timeline.png", "Requests in flight and batch size")
    perfetto.write(lanes, out / "trace.json")
    text += ["", "![timeline](timeline.png)", "", "`trace.json` opens in https://ui.perfetto.dev."]
    (out / "report.md").write_text("\n".join(text) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
