"""A stand-in for the Docker engine's API, on a socket of its own."""

from __future__ import annotations

import json
import re
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

VERSION = re.compile(r"^/v[\d.]+")


@dataclass
class FakeDocker:
    """What the engine says of itself; it has no containers.

    Attributes:
        refusal: the status and the body with which it answers everything; None: it answers as it should.
    """

    version: str = "26.1.5"
    info: dict[str, Any] = field(default_factory=dict)
    refusal: tuple[int, str] | None = None

    def answer(self, path: str) -> Any:
        if path == "/version":
            return {"Version": self.version, "ApiVersion": "1.43"}
        if path == "/info":
            return {"ServerVersion": self.version, "SecurityOptions": [], **self.info}
        return {"Volumes": []} if path == "/volumes" else []


@contextmanager
def serving(engine: FakeDocker, socket: Path) -> Iterator[str]:
    """The engine at that path; gives its address. At the end of the block the socket stays, and nobody listens."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = VERSION.sub("", self.path.partition("?")[0])
            status, text = engine.refusal or (200, json.dumps(engine.answer(path)))
            body = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def address_string(self) -> str:
            return "here"

        def log_message(self, *words: object) -> None:
            """A test's output is its own."""

    with socketserver.ThreadingUnixStreamServer(str(socket), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"unix://{socket}"
        finally:
            server.shutdown()
            thread.join()
