"""The notice about a result whose steps took their time from the model of a GPU (`--set pace=h100`)."""

from __future__ import annotations

from pathlib import Path

from labsched.log.files import open_to_read
from labsched.log.steplog import parse_step_line


def describe_pace(out: Path) -> str | None:
    """Return a sentence for people about a folder of results; None where no step of its logs was paced."""
    steps = late = 0
    for path in sorted(out.glob("steps-*.jsonl")):
        with open_to_read(path) as stream:
            for line in stream:
                data = parse_step_line(line) or {}
                if "paced_us" in data:
                    steps += 1
                    late += data["engine_us"] > data["paced_us"]
    if not steps:
        return None
    text = f"the times are those of a model of a GPU in slow motion (pace), for {steps:,} steps; no GPU was measured"
    return f"{text}; {late:,} of them took longer than it says: raise pace_slower" if late else text


def pace_section(out: Path) -> str:
    """The same as a part of report.md."""
    notice = describe_pace(out)
    return f"\n## A model of a GPU\n\n{notice[0].upper()}{notice[1:]}.\n" if notice else ""
