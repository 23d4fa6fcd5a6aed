"""``labctl up`` (warm) to READY, against the same tritonserver started by hand and polled; and one model's reload."""

from __future__ import annotations

import argparse
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from labctl import repository
from labctl.listener import Silent
from labctl.options import Options
from labctl.plan import make_plan
from labctl.runtimes import wheel
from labctl.stack.ports import claim_endpoints
from labctl.stack.session import Session
from labctl.triton.server_api import Unreachable, call_triton
from labkit.tables import format_table

STACK, MODEL = "iterative", "iterative-gpt2"
LIMIT_S = 1.0
READY_S = 120.0  # a server whose models cannot be loaded lives on, and is never ready


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--against", type=Path, help="start-up (with a .venv), decode: a second checkout, measured in turn"
    )


def run(asked: argparse.Namespace) -> dict[str, Any]:
    """The ways in turn; what ``labctl`` adds is the median of the differences."""
    session = Session.open(Silent())
    ways: dict[str, Callable[[], float]] = {
        "by hand": lambda: by_hand(session),
        "labctl up": lambda: by_labctl(session.workspace.root),
        "labctl reload": lambda: by_labctl(session.workspace.root, reload=True),
    }
    if asked.against:
        ways["the other checkout"] = lambda: by_labctl(asked.against.resolve())
    rounds = [{name: way() for name, way in ways.items()} for _ in range(asked.rounds + 1)][1:]  # the first warms up
    print(
        format_table(
            [[f"{took:.2f}" for took in row.values()] for row in rounds], [f"{n}, s" for n in ways], right=range(3)
        )
    )
    median = {name: statistics.median(row[name] for row in rounds) for name in ways}
    added = statistics.median(row["labctl up"] - row["by hand"] for row in rounds)
    print(f"labctl up adds {added:+.2f} s (limit: {LIMIT_S:.1f} s)")
    if asked.against:
        print(f"the other checkout takes {median['the other checkout'] / median['labctl up']:.2f} times as long")
    return {"rounds_s": rounds, "median_s": median, "added_s": added}


def by_labctl(root: Path, reload: bool = False) -> float:
    """Seconds of the whole command, the Python start of ``labctl`` included: ``up``, or then ``reload`` of a model."""

    def command(*words: str) -> float:
        began = time.monotonic()
        subprocess.run([str(root / ".venv" / "bin" / "labctl"), *words], cwd=root, check=True, capture_output=True)
        return time.monotonic() - began

    took = command("up", STACK, "--runtime", "local", "--ports", "auto", "--json")
    if reload:
        took = command("reload", STACK, MODEL)
    command("down", STACK)
    return took


def by_hand(session: Session) -> float:
    """Seconds from starting tritonserver until /v2/health/ready says 200."""
    lab, name = session.catalog.stack(STACK)
    with tempfile.TemporaryDirectory() as folder:
        plan = make_plan(session.workspace, lab, name, Options(), Path(folder) / "repository")
        repository.render_repository(plan.request)
        found = wheel.find_wheel()
        session.workspace.folder(STACK).run_dir().mkdir(parents=True, exist_ok=True)
        endpoints = claim_endpoints("auto")
        http, grpc, metrics = (int(e.rpartition(":")[2]) for e in vars(endpoints).values())
        backends = str(found.backends(session.workspace.backends_cache))
        arguments = plan.arguments(
            str(plan.request.output), "127.0.0.1", (http, grpc, metrics), "by-hand-", backend=backends
        )
        argv = [str(found.binary), *arguments]
        with (Path(folder) / "log").open("wb") as log:
            began = time.monotonic()
            process = subprocess.Popen(argv, env=wheel.environment(found), stdout=log, stderr=log)
        try:
            while not _ready(endpoints.http):
                if process.poll() is not None or time.monotonic() - began > READY_S:
                    raise RuntimeError((Path(folder) / "log").read_text())
                time.sleep(0.02)
            return time.monotonic() - began
        finally:
            process.terminate()
            process.wait(30)


def _ready(endpoint: str) -> bool:
    try:
        return call_triton(endpoint, "GET", "/v2/health/ready")[0] == 200
    except Unreachable:
        return False
