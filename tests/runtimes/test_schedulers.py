"""Lab 06 whole, on each runtime: five lessons, one server for all phases, each verdict met."""

from __future__ import annotations

import json
from pathlib import Path

from lab_programs import unproven
from machinery import labctl

PICTURES = ("chunked", "prefix", "speculation", "tenants", "triton")


def test_lab_06_proves_every_lesson_on_one_server(own: Path, where: str) -> None:
    done = labctl(
        "run",
        "schedulers",
        "--quick",
        "--strict",
        "--runtime",
        where,
        "--ports",
        "auto",
        "--set",
        "model=random:tiny-llama",
        "--output",
        "r.json",
        root=own,
        timeout=900,
    )
    assert done.stderr.count("READY after") == 1, done.stderr
    assert unproven("schedulers", json.loads((own / "r.json").read_text())) == []
    (out,) = (own / "results" / "06-modern-schedulers").iterdir()
    for picture in PICTURES:
        assert (out / f"{picture}.png").read_bytes().startswith(b"\x89PNG")
    report = (out / "report.md").read_text()
    assert [f"## {number}. " in report for number in (1, 2, 3, 4, 5)] == [True] * 5
    sent = [json.loads(line) for line in (out / "requests.jsonl").read_text().splitlines()]
    assert len({request["phase"] for request in sent}) == 16
