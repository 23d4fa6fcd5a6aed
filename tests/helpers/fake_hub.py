"""A small model hub on loopback: enough of its HTTP interface to be downloaded from, one fault at a time."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "a" * 40


class FakeHub:
    """``files`` of the model ``org/model``.

    ``fault``: "", 401, gated, gated-stranger (nobody knows who asks), no-repo, no-revision, a status, elsewhere
    (a redirect to a page), for-ever (to itself), or cut (once).
    """

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files
        self.fault = ""
        self.ranges: list[str] = []
        self.tokens: set[str] = set()


@contextmanager
def serve(hub: FakeHub) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self._answer(body=False)

        def do_GET(self) -> None:
            self._answer(body=True)

        def _answer(self, body: bool) -> None:
            hub.tokens.add(self.headers.get("Authorization", ""))
            refusals = {
                "401": (401, {}),
                "gated": (403, {"X-Error-Code": "GatedRepo"}),
                "gated-stranger": (401, {"X-Error-Code": "GatedRepo"}),
                "no-repo": (404, {"X-Error-Code": "RepoNotFound"}),
                "no-revision": (404, {"X-Error-Code": "RevisionNotFound"}),
                "elsewhere": (302, {"Location": "/login"}),
                "for-ever": (302, {"Location": self.path}),
                **{str(status): (status, {}) for status in (404, 429, 503)},
            }
            if self.path == "/login":
                self._send(200, b"<html>", {}, body)
            elif hub.fault in refusals:
                status, headers = refusals[hub.fault]
                self._send(status, b'{"error": "refused"}', headers, body)
            elif self.path.startswith("/api/models/"):
                rows = [{"rfilename": name, "size": len(data)} for name, data in hub.files.items()]
                info = {"id": "org/model", "sha": COMMIT, "siblings": rows}
                self._send(200, json.dumps(info).encode(), {"Content-Type": "application/json"}, body)
            else:
                self._file(self.path.rsplit("/", 1)[-1].partition("?")[0], body)

        def _file(self, name: str, body: bool) -> None:
            if name not in hub.files:
                self._send(404, b"", {"X-Error-Code": "EntryNotFound"}, body)
                return
            data = hub.files[name]
            headers = {
                "ETag": f'"{hashlib.sha256(data).hexdigest()}"',
                "X-Repo-Commit": COMMIT,
                "Accept-Ranges": "bytes",
            }
            wanted = self.headers.get("Range")
            if body and wanted:
                hub.ranges.append(wanted)
                start = int(wanted.removeprefix("bytes=").split("-")[0])
                headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
                self._send(206, data[start:], headers, body)
            elif body and hub.fault == "cut" and name.endswith(".safetensors"):
                self.send_response(200)
                self.send_header("Content-Length", str(len(data)))
                for key, value in headers.items():
                    self.send_header(key, value)
                self.end_headers()
                self.wfile.write(data[: len(data) // 4 * 3])
                self.wfile.flush()
                self.close_connection = True
            else:
                self._send(200, data, headers, body)

        def _send(self, status: int, data: bytes, headers: dict[str, str], body: bool) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            for key, value in headers.items():
                self.send_header(key, value)
            self.end_headers()
            if body:
                self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
