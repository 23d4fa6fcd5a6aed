"""Lab 07 whole, on each runtime: five parts, replicas that come and go while its clients run, all that is counted."""

from __future__ import annotations

import json
from pathlib import Path

from lab_programs import unproven
from machinery import labctl

PICTURES = ("spread", "sequences", "speed-up", "nothing-lost", "when-to-scale")


def test_lab_07_proves_every_part_and_leaves_nothing(own: Path, where: str) -> None:
    done = labctl(
        "run", "scale", "--quick", "--runtime", where, "--ports", "auto", "--output", "r.json", root=own, timeout=900
    )
    assert done.stderr.count("READY after") == 1, done.stderr
    turned = [line.split()[5] for line in done.stderr.splitlines() if "ok  the balancer of scaled, " in line]
    assert turned == ["client", "l7", "hash"]
    assert unproven("scale", json.loads((own / "r.json").read_text())) == []
    (out,) = (own / "results" / "07-scale-out").iterdir()
    for picture in PICTURES:
        assert (out / f"{picture}.png").read_bytes().startswith(b"\x89PNG")
    assert "was not up" in labctl("down", "scaled", root=own).stdout
