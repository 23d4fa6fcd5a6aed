"""``labctl up`` (warm) to READY on the compose runtime, against ``docker compose up --wait`` by hand.

Both start the same image with the same rendered repository; the commands by hand are those of docs/operate/compose.md.
"""

from __future__ import annotations

import os
import shlex
import shutil
import statistics
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from labctl.listener import Silent
from labctl.runtimes import images
from labctl.stack.ports import claim_endpoints
from labctl.stack.session import Session
from labctl.triton.server_api import call_triton
from labkit.errors import LabError
from labkit.tables import format_table

STACK = "iterative"
LIMIT_S = 1.0


def run(rounds: int) -> dict[str, Any]:
    """Pairs of the two in turn; what ``labctl`` adds is the median of the differences."""
    session = Session.open(Silent())
    try:
        session.runtime("compose").check("cpu")
    except LabError as error:
        print(f"not measured: {error.what}")
        return {"not_measured": error.what}
    by_labctl(session)  # makes images, weights and whatever else is there from then on
    pairs = [(by_hand(session), by_labctl(session)) for _ in range(rounds)]
    added = statistics.median(mine - hand for hand, mine in pairs)
    ratio = statistics.median(mine / hand for hand, mine in pairs)
    rows = [(f"{hand:.2f}", f"{mine:.2f}", f"{mine - hand:+.2f}", f"{mine / hand:.2f}") for hand, mine in pairs]
    print(format_table(rows, ("by hand s", "labctl up s", "difference s", "ratio"), right=(0, 1, 2, 3)))
    print(f"labctl up adds {added:+.2f} s (limit: {LIMIT_S:.1f} s), ratio {ratio:.2f}")
    return {"pairs_s": pairs, "added_s": added, "ratio": ratio}


def by_labctl(session: Session) -> float:
    """Seconds of the whole command, the Python start of ``labctl`` included."""
    began = time.monotonic()
    _labctl(session, "up", STACK, "--runtime", "compose", "--ports", "auto", "--json")
    took = time.monotonic() - began
    _labctl(session, "down", STACK)
    return took


def by_hand(session: Session) -> float:
    """Seconds of ``docker compose up --wait`` on what ``labctl render`` has written."""
    _labctl(session, "render", STACK, "--runtime", "compose")
    endpoints = claim_endpoints("auto")
    environment = {
        **os.environ,
        "STACK_SERVER_IMAGE": images.server_image(session.workspace, "cpu"),
        "STACK_NAME": STACK,
        "STACK_CACHE": str(session.workspace.cache),
        **{f"STACK_{name.upper()}_PORT": value.rpartition(":")[2] for name, value in vars(endpoints).items()},
    }
    compose = ["docker", "compose", "--project-name", "labs-by-hand"]
    root = session.workspace.root
    try:
        began = time.monotonic()
        _run([*compose, "up", "--wait"], root, environment)
        took = time.monotonic() - began
        if call_triton(endpoints.http, "GET", "/v2/health/ready")[0] != 200:  # its exit status alone proves nothing
            raise RuntimeError("docker compose up --wait has ended, and the server is not ready")
        return took
    finally:
        _run([*compose, "down"], root, environment)


def _labctl(session: Session, *arguments: str) -> None:
    labctl = Path(shutil.which("labctl") or session.workspace.root / ".venv" / "bin" / "labctl")
    _run([str(labctl), *arguments], session.workspace.root)


def _run(argv: Sequence[str], root: Path, environment: Mapping[str, str] | None = None) -> None:
    done = subprocess.run(argv, cwd=root, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{shlex.join(argv)}: exit status {done.returncode}\n{done.stderr}")
