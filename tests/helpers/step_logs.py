"""Lines of step logs, and what a timeline holds of one."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

Line = dict[str, Any]


def step(n: int, ids: list[str], **more: Any) -> Line:
    """The line of a step, half a second long, in which each request decodes a token."""
    each = {"batch": len(ids), "ids": ids, "rows": [*range(len(ids))], "phase": "d" * len(ids), "made": [1] * len(ids)}
    head = {"v": 2, "n": n, "t": 10.0 + n, "dur": 0.5, "model": "m", "instance": "0_0", "kind": "step"}
    return {**head, **each, **more}


def recorded(timeline: Path) -> dict[str, Any]:
    """What a ``timeline.html`` holds."""
    held = re.search(r'id="recording">(.*?)</script>', timeline.read_text(encoding="utf-8"), re.S)
    assert held, f"{timeline} holds no recording"
    document: dict[str, Any] = json.loads(held[1])
    return document


def write_run(folder: Path) -> None:
    """A run's folder: request 1 makes 374 tokens, and request 2, which was sent meanwhile, waits for all of them."""
    names = ["1"] * 374 + ["2"] * 2
    last = {374: {"1": "length"}, 376: {"2": "length"}}
    lines = [
        {
            "t": 100 + n / 10,
            "dur": 0.1,
            "model": "m",
            "instance": "0",
            "kind": "step",
            "ids": [name],
            "made": [1],
            "n": n,
        }
        | ({"ended": last[n]} if n in last else {})
        for n, name in enumerate(names, start=1)
    ]
    (folder / "steps-a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    sent = [
        {"phase": "a", "id": "1", "label": "", "start": 99.9},
        {"phase": "a", "id": "2", "label": "", "start": 100.05},
    ]
    (folder / "requests.jsonl").write_text("".join(json.dumps(one) + "\n" for one in sent))
