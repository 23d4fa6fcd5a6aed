"""Envoy's container: ``python -m labctl.runtimes.envoy.container FILE``.

It runs Envoy with the configuration FILE. SERVERS, beside FILE, names the replicas by host name, and Envoy gets their
addresses whenever one changes.
"""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from labctl.runtimes.envoy import config
from labctl.runtimes.envoy.config import Address, BackendServer, assignments
from labctl.triton.arguments import GRPC, HTTP

CONFIG, SERVERS = "envoy.json", "servers.json"
LOOK_S = 0.25


def servers_json(hosts: Mapping[int, str], draining: Collection[int]) -> str:
    """The text of SERVERS: the servers' host names, by their numbers."""
    servers = [{"number": number, "host": host, "draining": number in draining} for number, host in hosts.items()]
    return json.dumps({"servers": servers})


class _Followed:
    """The servers that a file names, as Envoy wants them: by address. A name may get another address at any time."""

    def __init__(self, file: Path, target: Path) -> None:
        self._file, self._target = file, target
        self._addresses: dict[str, str] = {}
        self._asked: set[str] = set()
        self._written: dict[str, str] = {}

    def write_changes(self) -> None:
        """Write what has changed; Envoy sees it."""
        servers = []
        with contextlib.suppress(OSError, ValueError):
            document: dict[str, Any] = json.loads(self._file.read_text(encoding="utf-8"))
            for server in document["servers"]:
                host = server["host"]
                if host not in self._asked:
                    self._asked.add(host)
                    threading.Thread(target=self._resolve, args=(host,), daemon=True).start()
                if address := self._addresses.get(host):
                    http, grpc = Address(address, HTTP), Address(address, GRPC)
                    servers.append(BackendServer(server["number"], http, grpc, server["draining"]))
            for name, text in assignments(servers).items():
                if self._written.get(name) != text:
                    (self._target / f".{name}").write_text(text)
                    (self._target / f".{name}").rename(self._target / name)
                    self._written[name] = text

    def _resolve(self, host: str) -> None:
        """Look a host's address up, for ever. A host that loses its own keeps it here: Envoy sees that none answers."""
        while True:
            with contextlib.suppress(OSError):
                self._addresses[host] = socket.gethostbyname(host)
            time.sleep(LOOK_S)


def main() -> int:
    given = Path(sys.argv[1])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    followed = _Followed(given.with_name(SERVERS), config.FOLDER)
    followed.write_changes()  # Envoy wants the files, if only empty ones
    command = [str(config.binary()), *config.envoy_arguments(str(given))]
    envoy = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    try:
        while envoy.poll() is None:
            followed.write_changes()
            time.sleep(LOOK_S)
        code = envoy.returncode
        how = f"exit status {code}" if code >= 0 else f"killed by signal {-code}"
        print(f"envoy ended: {how}; the container ends", file=sys.stderr, flush=True)
        return 1
    finally:
        envoy.kill()


if __name__ == "__main__":
    sys.exit(main())
