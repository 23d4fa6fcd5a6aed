"""Lab 01's report: the strategies and the generators side by side, and the slots. Run by ``labctl run sequence``."""

import json
import sys
from pathlib import Path

from labctl.measure import results
from labctl.measure.evidence.slots import Timeline
from labctl.measure.evidence.steplog import Step
from labctl.measure.pictures import perfetto, slot_picture
from labctl.measure.pictures.timeline import Lane
from labctl.measure.records import RequestRecord
from labctl.tables import markdown, table
from labctl.workspace import atomic_write

TIMED = ("direct", "oldest", "torchscript")
WATCHED = {
    "direct-slots": "Direct: a sequence keeps its slot, and the slot is its row in every batch",
    "oldest-slots": "Oldest: a sequence keeps its place among the candidates, and sits in any row",
    "backlog": "Direct with fewer slots than clients: who has none waits for the end of another sequence",
}
HEADER = (
    "strategy", "generator", "kept one row", "mean batch", "empty rows", "generator's batch", "step p50 ms",
    "p99 ms", "tokens/s",
)  # fmt: skip


def main() -> None:
    out = Path(sys.argv[1])
    phases = {name: results.read_phase(out, name) for name in TIMED if results.has_phase(out, name)}
    watched = {name: results.read_phase(out, name) for name in WATCHED if results.has_phase(out, name)}
    metrics: dict = {name: numbers(data) for name, data in phases.items()}
    metrics["slots"] = {
        "disagreements": sum(len(data["disagreements"]) for data in watched.values()),
        "requests": sum(len(stay["requests"]) for data in watched.values() for stay in data["timeline"]["stays"]),
        "waited": sum(len(data["timeline"]["waits"]) for data in watched.values()),
    }
    context = results.context_of(out, "direct")
    results.write_result(out, context["lab"], context["settings"], metrics, phases["direct"]["triton"])

    timelines = {name: data["timeline"] for name, data in watched.items()}
    atomic_write(out / "slots.json", json.dumps(timelines, indent=1))
    lanes = [(WATCHED[name], Timeline.from_json(data)) for name, data in timelines.items()]
    slot_picture.draw(lanes, out / "slots.png", "Which sequence sat in which slot, and in which row of each batch")
    perfetto.write([lane(WATCHED[name], data["trace"]) for name, data in watched.items()], out / "trace.json")
    rows = [row(data) for data in phases.values()]
    text = ["# Lab 01: sequence batcher", "", markdown(rows, HEADER), "", "![slots](slots.png)", ""]
    text += ["`trace.json`, the runs whose slots are drawn, opens in https://ui.perfetto.dev."]
    if results.has_phase(out, "semantics"):
        said = [(s["what"], s["answer"], "; ".join(s["log"])) for s in results.read_phase(out, "semantics")["said"]]
        text += ["", "## What Triton says", "", markdown(said, ("what was done", "to the client", "in its log"))]
    atomic_write(out / "report.md", "\n".join(text) + "\n")
    print("\nSide by side\n" + table(rows, HEADER, right=(2, 3, 4, 5, 6, 7, 8)))


def lane(title: str, trace: dict) -> Lane:
    return Lane(title, [RequestRecord(**r) for r in trace["records"]], [Step(**step) for step in trace["steps"]])


def numbers(phase: dict) -> dict:
    return {
        "kept_slot": phase["kept"],
        "moved": 1.0 - phase["kept"],
        **{key: phase[key] for key in ("mean_batch", "mean_empty", "generator_mean_batch")},
        **phase["metrics"],
    }


def row(phase: dict) -> tuple[str, ...]:
    found = phase["metrics"]
    step, behind = found["inter_token_latency"], phase["generator_mean_batch"]
    return (
        phase["strategy"], phase["generator"], f"{phase['kept']:.0%}", f"{phase['mean_batch']:.2f}",
        f"{phase['mean_empty']:.2f}", "-" if behind is None else f"{behind:.2f}", f"{step['p50']:.2f}",
        f"{step['p99']:.2f}", f"{found['output_token_throughput']:.0f}",
    )  # fmt: skip


if __name__ == "__main__":
    main()
