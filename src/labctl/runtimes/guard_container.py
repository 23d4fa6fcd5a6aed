"""The guard's container: ``python -m labctl.runtimes.guard_container HOST`` stands before the ports of the server HOST.

The judge and Envoy are its two processes. When either ends, so does the other, and the container with them: a request
then reaches nobody, rather than a server that nothing guards.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from labctl.guard import envoy
from labctl.guard.envoy import Front
from labctl.guard.parts import Address
from labctl.runtimes.arguments import GRPC, HTTP, METRICS
from labctl.runtimes.keeper import describe_exit


def main() -> int:
    scratch = Path(tempfile.gettempdir())
    config, judge = scratch / "envoy.json", scratch / "judge"
    fronts = [Front(Address("0.0.0.0", port), [Address(sys.argv[1], port)]) for port in (HTTP, GRPC, METRICS)]
    config.write_text(envoy.render(*fronts, Address(pipe=str(judge))))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    commands = {
        "the judge": [sys.executable, "-m", "labctl.guard.judge", f"unix:{judge}"],
        "Envoy": [str(envoy.binary()), *envoy.arguments(str(config))],
    }
    parts = {name: subprocess.Popen(argv, stdin=subprocess.DEVNULL) for name, argv in commands.items()}
    try:
        pid, status = os.wait()
        who = next(name for name, part in parts.items() if part.pid == pid)
        print(f"labctl: {who} ended: {describe_exit(os.waitstatus_to_exitcode(status))}; the guard ends", flush=True)
        return 1
    finally:
        for part in parts.values():
            part.kill()


if __name__ == "__main__":
    sys.exit(main())
