"""Lab 08's report: of each of the five parts a table, and the numbers that its verdicts judge."""

import sys
from pathlib import Path

import lessons

from labkit.evidence.records import Lane
from labkit.evidence.report import Report

PHASES = ["vllm", "vllm-reuse", "ours", "ours-reuse"]


def main() -> None:
    report = Report(Path(sys.argv[1]), "Lab 08: vLLM's scheduler and ours", PHASES)
    vllm, vllm_reuse, ours = (report.phases[phase]["parts"] for phase in PHASES[:3])
    # On a GPU ours stands before transformers, which shares no prefixes.
    ours_reuse = report.phases["ours-reuse"]["parts"] if "ours-reuse" in report.phases else {}
    metrics = {
        "trace": lessons.trace(report, {"vllm": vllm["trace"], "ours": ours["trace"]}),
        "chunked": lessons.chunked(report, {"vllm": vllm["chunked"], "ours": ours["chunked"]}),
        "prefix": lessons.prefix(report, {"vllm": vllm_reuse["prefix"], **of_ours(ours_reuse, "prefix")}),
        "urgent": lessons.urgent(
            report, {"fcfs": vllm["urgent"], "priority": vllm_reuse["urgent"], **of_ours(ours_reuse, "urgent")}
        ),
    }
    report.finish(metrics, [Lane.from_json(name, run) for name, run in report.phases.items()])


def of_ours(parts, part):
    return {"ours": parts[part]} if parts else {}


if __name__ == "__main__":
    main()
