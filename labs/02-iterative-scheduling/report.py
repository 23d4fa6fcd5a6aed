"""Lab 02's report: the three variants side by side, the timeline, the trace. Run by ``labctl run iterative``."""

import sys
from pathlib import Path

from labkit.evidence import timeline
from labkit.evidence.records import Lane
from labkit.evidence.report import Report

ORIGINAL, CACHED = "original", "kv-cache"
# Name: phase, model, title of its part of the picture.
VARIANTS = {
    "simple": (ORIGINAL, "simple-gpt2", "simple-gpt2: the second prompt waits for the whole first batch"),
    "iterative": (ORIGINAL, "iterative-gpt2", "iterative-gpt2: the second prompt joins at the next token"),
    "iterative_kv_cache": (CACHED, "iterative-gpt2", "iterative-gpt2 with a KV cache"),
}
HEADER = ("variant", "tokens waited for", "overlap", "2nd TTFT ms", "tokens/s", "TTFT p50 ms", "TTFT max ms")


def main() -> None:
    report = Report(Path(sys.argv[1]), "Lab 02: iterative scheduling", (ORIGINAL, CACHED))
    phases = report.phases
    metrics: dict = {"variants": {}}
    rows, lanes, drawn = [], [], []
    for name, (phase, model, title) in VARIANTS.items():
        if phase not in phases:
            continue
        demo, clients = phases[phase]["demo"][model], phases[phase]["clients"][model]
        lane = Lane.from_json(title, demo)
        lanes.append(lane)
        drawn.append(Lane.from_json(title, phases[phase]["drawn"][model]))
        newcomer = lane.records[1]
        metrics[name] = {
            "newcomer_time_to_first_token": newcomer.ttft_ms,
            **{key: demo[key] for key in ("token_overlap", "tokens_before_newcomer", "steps_alone", "step_ms")},
            **demo["metrics"],
        }
        metrics["variants"][name] = clients
        ttft = clients["time_to_first_token"]
        rows.append(
            (
                name.replace("_", " "),
                demo["tokens_before_newcomer"],
                f"{demo['token_overlap']:.0%}",
                f"{newcomer.ttft_ms:.0f}",
                f"{clients['output_token_throughput']:.0f}",
                f"{ttft['p50']:.0f}",
                f"{ttft['max']:.0f}",
            )
        )
    throughput = {name: clients["output_token_throughput"] for name, clients in metrics["variants"].items()}
    if "simple" in throughput:
        metrics["speedup_over_simple"] = {name: value / throughput["simple"] for name, value in throughput.items()}
    lengths = ", ".join(f"{name} {phase['tokens']}" for name, phase in report.phases.items())
    report.say(
        "Tokens that the newcomer waited for, overlap (the share of both answers' tokens that came while both were "
        "being answered) and its time to first token: two prompts. "
        f"Throughput and TTFT: {report.settings['clients']} clients arriving at random. Answers have what this "
        f"machine makes in two seconds (0.8 with --quick), measured at the start of each phase, and at most "
        f"400 tokens: {lengths}."
    )
    report.table("The variants", rows, HEADER)
    timeline.draw_timeline(
        drawn,
        report.out / "timeline.png",
        "Two other prompts, short enough to see each of 24 tokens; the second a token later",
    )
    report.finish(metrics, lanes, "timeline.png")


if __name__ == "__main__":
    main()
