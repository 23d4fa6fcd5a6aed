"""Lab 01's report: the strategies and the generators side by side, and the slots. Run by ``labctl run sequence``."""

import json
import sys
from pathlib import Path

from labkit.disk import atomic_write
from labkit.evidence import slot_picture
from labkit.evidence.records import Lane
from labkit.evidence.report import Report
from labkit.evidence.slots import Timeline
from labsched.markdown import markdown

TIMED = ("direct", "oldest", "torchscript")
WATCHED = {
    "direct-slots": "Direct: the slot is the row, from START to END",
    "oldest-slots": "Oldest: a sequence keeps its slot, and may be in any row",
    "backlog": "Direct, six clients and four slots: two wait for a free slot",
}
HEADER = (
    "strategy",
    "generator",
    "kept one row",
    "mean batch",
    "empty rows",
    "generator's batch",
    "step p50 ms",
    "p99 ms",
    "tokens/s",
)


def main() -> None:
    report = Report(Path(sys.argv[1]), "Lab 01: sequence batcher", (*TIMED, *WATCHED, "semantics"))
    timed = {name: data for name, data in report.phases.items() if name in TIMED}
    watched = {name: data for name, data in report.phases.items() if name in WATCHED}
    metrics: dict = {name: numbers(data) for name, data in timed.items()}
    metrics["slots"] = {
        "disagreements": sum(len(data["disagreements"]) for data in watched.values()),
        "requests": sum(len(stay["requests"]) for data in watched.values() for stay in data["timeline"]["stays"]),
        "waited": sum(len(data["timeline"]["waits"]) for data in watched.values()),
    }
    report.table("Side by side", [row(data) for data in timed.values()], HEADER, left=2)
    if "semantics" in report.phases:
        rows = [(s["what"], s["answer"], "; ".join(s["log"])) for s in report.phases["semantics"]["said"]]
        report.say("## What Triton says\n\n" + markdown(rows, ("what was done", "to the client", "in its log")))

    timelines = {name: data["timeline"] for name, data in watched.items()}
    atomic_write(report.out / "slots.json", json.dumps(timelines, indent=1))
    for name, data in timelines.items():
        slot_picture.draw_slots(Timeline.from_json(data), report.out / f"{name}.png", WATCHED[name])
        report.say(f"![{WATCHED[name]}]({name}.png)")
    lanes = [Lane.from_json(WATCHED[name], data["trace"]) for name, data in watched.items()]
    report.finish(metrics, lanes, traced="the runs whose slots are drawn")


def numbers(phase: dict) -> dict:
    return {
        "kept_slot": phase["kept"],
        "moved": 1.0 - phase["kept"],
        **{key: phase[key] for key in ("mean_batch", "mean_empty", "generator_mean_batch")},
        **phase["metrics"],
    }


def row(phase: dict) -> tuple[str, ...]:
    totals = phase["metrics"]
    step, behind = totals["inter_token_latency"], phase["generator_mean_batch"]
    return (
        phase["strategy"],
        phase["generator"],
        f"{phase['kept']:.0%}",
        f"{phase['mean_batch']:.2f}",
        f"{phase['mean_empty']:.2f}",
        "-" if behind is None else f"{behind:.2f}",
        f"{step['p50']:.2f}",
        f"{step['p99']:.2f}",
        f"{totals['output_token_throughput']:.0f}",
    )


if __name__ == "__main__":
    main()
