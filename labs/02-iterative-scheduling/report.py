"""Lab 02's report: the three variants side by side, the timeline, the trace. Run by ``labctl run iterative``."""

import sys
from pathlib import Path

from labctl.measure import results
from labctl.measure.evidence.steplog import Step
from labctl.measure.pictures import perfetto, timeline
from labctl.measure.pictures.timeline import Lane
from labctl.measure.records import RequestRecord
from labctl.tables import markdown, table

ORIGINAL, CACHED = "original", "kv-cache"
VARIANTS = (
    ("simple", ORIGINAL, "simple-gpt2"),
    ("iterative", ORIGINAL, "iterative-gpt2"),
    ("iterative_kv_cache", CACHED, "iterative-gpt2"),
)


def lane(demo: dict, model: str, title: str) -> Lane:
    data = demo[model]
    return Lane(title, [RequestRecord(**r) for r in data["records"]], [Step(**step) for step in data["steps"]])


def main() -> None:
    out = Path(sys.argv[1])
    phases = {name: results.read_phase(out, name) for name in (ORIGINAL, CACHED)}
    metrics: dict = {"variants": {}}
    rows = []
    for name, phase, model in VARIANTS:
        demo, clients = phases[phase]["demo"][model], phases[phase]["clients"][model]
        second = RequestRecord(**demo["records"][1])
        metrics[name] = {
            "overlap": demo["overlap"],
            "newcomer_time_to_first_token": second.ttft_ms,
            **demo["metrics"],
        }
        metrics["variants"][name] = clients
        ttft = clients["time_to_first_token"]
        rows.append(
            (name.replace("_", " "), f"{demo['overlap']:.0%}", f"{second.ttft_ms:.0f}",
             f"{clients['output_token_throughput']:.0f}", f"{ttft['p50']:.0f}", f"{ttft['max']:.0f}")
        )  # fmt: skip
    speedup = {
        name: metrics["variants"][name]["output_token_throughput"]
        / metrics["variants"]["simple"]["output_token_throughput"]
        for name, _, _ in VARIANTS
    }
    metrics["speedup_over_simple"] = speedup
    context = results.context_of(out, CACHED)
    results.write_result(out, context["lab"], context["settings"], metrics, phases[CACHED]["triton"])

    header = ("variant", "overlap", "2nd TTFT ms", "tokens/s", "TTFT p50 ms", "TTFT max ms")
    lanes = [
        lane(
            phases[ORIGINAL]["demo"],
            "simple-gpt2",
            "simple-gpt2: the second prompt waits for the whole first batch",
        ),
        lane(
            phases[ORIGINAL]["demo"],
            "iterative-gpt2",
            "iterative-gpt2: the second prompt joins at the next token",
        ),
        lane(phases[CACHED]["demo"], "iterative-gpt2", "iterative-gpt2 with a KV cache"),
    ]
    timeline.draw(lanes, out / "timeline.png", "Two prompts, the second 50 ms after the first")
    perfetto.write(lanes, out / "trace.json")
    clients = context["settings"]["clients"]
    text = [
        "# Lab 02: iterative scheduling",
        "",
        f"Overlap and the newcomer's time to first token: two prompts, {phases[ORIGINAL]['tokens']} tokens each "
        f"({phases[CACHED]['tokens']} with the cache). Throughput and TTFT: {clients} clients arriving at random.",
        "",
        markdown(rows, header),
        "",
        "![timeline](timeline.png)",
        "",
        "`trace.json` opens in https://ui.perfetto.dev.",
    ]
    (out / "report.md").write_text("\n".join(text) + "\n", encoding="utf-8")
    print("\nThe three variants\n" + table(rows, header, right=(1, 2, 3, 4, 5)))


if __name__ == "__main__":
    main()
