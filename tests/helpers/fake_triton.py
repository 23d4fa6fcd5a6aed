"""A small HTTP server that answers as Triton does, one fault at a time."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class FakeTriton:
    """What it answers can be changed while it runs."""

    def __init__(self) -> None:
        self.live = True
        self.index: list[dict[str, Any]] = []
        self.answers: dict[str, tuple[int, str]] = {}
        self.calls: list[str] = []
        self.metrics = ""

    def on_index(self) -> None:
        """Called at each poll of the repository index; a test may replace it."""

    def on_metrics(self) -> None:
        """Called before the counters are told; a test may replace it."""


@contextmanager
def serve(fake: FakeTriton) -> Iterator[str]:
    """The endpoint (``host:port``) of a running fake."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/metrics":
                fake.on_metrics()
                self._reply(200, fake.metrics)
            elif self.path == "/v2":
                self._reply(200, json.dumps({"version": "2.51.0"}))
            else:
                self._reply(200 if fake.live else 400, "")

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            fake.calls.append(self.path)
            if self.path == "/v2/repository/index":
                fake.on_index()
                self._reply(200, json.dumps(fake.index))
            else:
                self._reply(*fake.answers.get(self.path, (200, "{}")))

        def _reply(self, status: int, text: str) -> None:
            data = text.encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
