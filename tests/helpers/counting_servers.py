"""Servers that count who asks them, behind a real Envoy."""

from __future__ import annotations

import contextlib
import http.client
import json
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from waiting import eventually

from labctl.runtimes.envoy import admin, config
from labctl.runtimes.envoy.config import Address, BackendServer, Balance, assignments
from labctl.stack.ports import free_endpoints


class Counting(ThreadingHTTPServer):
    """Ready, and answers every POST with its own port; one to a path that ends with "held" when ``go`` is set."""

    daemon_threads = True

    def __init__(self, port: int = 0) -> None:
        self.headers: list[dict[str, str]] = []
        self.begun, self.go = threading.Semaphore(0), threading.Event()
        super().__init__(("127.0.0.1", port), _Handler)
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    def dies(self) -> None:
        """Every connection is refused from now on, and nobody has told Envoy."""
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: Counting

    def log_message(self, *_: object) -> None:
        """Says nothing."""

    def do_GET(self) -> None:
        self._answer(b"")

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.server.headers.append({key.lower(): value for key, value in self.headers.items()})
        if self.path.endswith("held"):
            self.server.begun.release()
            self.server.go.wait(60)
        self._answer(str(self.server.server_port).encode())

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@dataclass
class Balanced:
    """Counting servers behind an Envoy of their own."""

    folder: Path
    policy: str
    servers: list[Counting] = field(default_factory=lambda: [Counting(), Counting()])

    def __post_init__(self) -> None:
        self.place = free_endpoints(1)[0]

    def configure(self) -> Path:
        self.name_servers()
        listen = {name: Address.of(endpoint) for name, endpoint in vars(self.place).items()}
        balance = Balance(self.policy, listen, self.folder, str(self.folder / "admin"))
        path = self.folder / "envoy.json"
        path.write_text(json.dumps(config.envoy_configuration(balance)))
        return path

    def name_servers(self, *draining: int, without: Sequence[int] = ()) -> None:
        """Envoy is told who there is; numbers begin at 1."""
        servers = [
            BackendServer(i, (at := Address("127.0.0.1", one.server_port)), at, i in draining)
            for i, one in enumerate(self.servers, 1)
            if i not in without
        ]
        for name, text in assignments(servers).items():
            (self.folder / "new").write_text(text)
            (self.folder / "new").replace(self.folder / name)

    def seen(self) -> dict[int, admin.UpstreamHealth]:
        with contextlib.suppress(OSError):
            return admin.read_upstreams(admin.clusters(str(self.folder / "admin")))
        return {}

    def ask(self, path: str = "/v2/models/m/infer", **headers: str) -> tuple[int, str]:
        """Status and body; an underscore in a header's name stands for a dash."""
        connection = http.client.HTTPConnection(self.place.http, timeout=60)
        with contextlib.closing(connection):
            connection.request("POST", path, b"{}", {name.replace("_", "-"): text for name, text in headers.items()})
            response = connection.getresponse()
            return response.status, response.read().decode()

    def get(self, endpoint: str, path: str) -> tuple[int, str]:
        connection = http.client.HTTPConnection(endpoint, timeout=60)
        with contextlib.closing(connection):
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read().decode()


@contextlib.contextmanager
def balanced(folder: Path, policy: str) -> Iterator[Balanced]:
    """Two servers and an Envoy that finds both well."""
    one = Balanced(folder, policy)
    process = subprocess.Popen([str(config.binary()), *config.envoy_arguments(str(one.configure()))])
    try:
        eventually(lambda: len(seen := one.seen()) == 2 and all(s.healthy for s in seen.values()))
        eventually(lambda: _listens(one))
        yield one
    finally:
        process.kill()
        process.wait()
        for server in one.servers:
            server.go.set()
            server.dies()


def _listens(one: Balanced) -> bool:
    with contextlib.suppress(OSError):
        return one.ask()[0] == 200
    time.sleep(0.02)
    return False
