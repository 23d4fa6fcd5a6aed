"""The container of the guard or balancer: ``python -m labguard.container HOST|FOLDER``.

It stands before the ports of the server HOST, or spreads requests over the servers that FOLDER's file names. Envoy, and
the judge where strangers are about, are its processes. When either ends, so does the other, and the container with
them: a request then reaches nobody, rather than a server that nothing guards.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from labguard import GRPC, HTTP, METRICS, envoy
from labguard.envoy import Address, Balance, Front, Server, assignments

FILE = "servers.json"
SCRATCH = Path(tempfile.gettempdir())
ADMIN, JUDGE = envoy.IN_CONTAINER
LOOK_S = 0.25


def servers_json(policy: str, guarded: bool, hosts: Mapping[int, str], draining: Collection[int] = ()) -> str:
    """The text of FILE: the servers' host names, by their numbers."""
    servers = [{"number": number, "host": host, "draining": number in draining} for number, host in hosts.items()]
    return json.dumps({"policy": policy, "guarded": guarded, "servers": servers})


class Followed:
    """The servers that a file names, as Envoy wants them: by address. A name may get another address at any time."""

    def __init__(self, folder: Path, target: Path) -> None:
        self._file, self._target = folder / FILE, target
        self._addresses: dict[str, str] = {}
        self._asked: set[str] = set()
        self._written: dict[str, str] = {}

    def read(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._file.read_text(encoding="utf-8"))
        return found

    def write_changes(self) -> None:
        """Write what has changed; Envoy sees it."""
        servers = []
        with contextlib.suppress(OSError, ValueError):
            for one in self.read()["servers"]:
                host = one["host"]
                if host not in self._asked:
                    self._asked.add(host)
                    threading.Thread(target=self._resolve, args=(host,), daemon=True).start()
                if address := self._addresses.get(host):
                    http, grpc = Address(address, HTTP), Address(address, GRPC)
                    servers.append(Server(one["number"], http, grpc, one["draining"]))
            for name, text in assignments(servers).items():
                if self._written.get(name) != text:
                    (self._target / f".{name}").write_text(text)
                    (self._target / f".{name}").rename(self._target / name)
                    self._written[name] = text

    def _resolve(self, host: str) -> None:
        """For ever; one that has none keeps its last address, and Envoy sees for itself that nobody answers there."""
        while True:
            with contextlib.suppress(OSError):
                self._addresses[host] = socket.gethostbyname(host)
            time.sleep(LOOK_S)


def main() -> int:
    target = sys.argv[1]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    config = SCRATCH / "envoy.json"
    followed = Followed(Path(target), SCRATCH) if target.startswith("/") else None
    told = followed.read() if followed else {"guarded": True}
    servers = [] if followed else [target]
    fronts = [
        Front(Address("0.0.0.0", port), [Address(host, port) for host in servers]) for port in (HTTP, GRPC, METRICS)
    ]
    judge = JUDGE if told["guarded"] else ""
    spread = Balance(str(told["policy"]), SCRATCH, ADMIN) if followed else None
    config.write_text(envoy.render(*fronts, judge=judge, balance=spread, trace=os.environ.get("LABS_TRACE", "")))
    if followed:
        followed.write_changes()  # Envoy wants the files, if only empty ones
    return _run(config, judge, followed)


def _run(config: Path, judge: str, followed: Followed | None = None) -> int:
    """Run Envoy, and the judge at its socket where there is one, until either ends."""
    commands = {"Envoy": [str(envoy.binary()), *envoy.arguments(str(config))]}
    if judge:
        judging = [sys.executable, "-m", "labguard.judge", f"unix:{judge}", f"127.0.0.1:{HTTP}"]
        commands = {"the judge": judging, **commands}
    subprocess.run([*commands["Envoy"], "--mode", "validate"], check=True, stdout=subprocess.DEVNULL)
    parts = {name: subprocess.Popen(argv, stdin=subprocess.DEVNULL) for name, argv in commands.items()}
    try:
        while not (ended := [(name, part) for name, part in parts.items() if part.poll() is not None]):
            if followed:
                followed.write_changes()
            time.sleep(LOOK_S)
        who, part = ended[0]
        code = part.returncode
        how = f"exit status {code}" if code >= 0 else f"killed by signal {-code}"
        print(f"guard: {who} ended: {how}; the container ends", flush=True)
        return 1
    finally:
        for part in parts.values():
            part.kill()


if __name__ == "__main__":
    sys.exit(main())
