"""What the fuzzer calls a leak: memory, files or threads that a door keeps of requests. The shipped door keeps none."""

from __future__ import annotations

import http.server
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
from machinery import ROOT

from labkit.waiting import attempts

sys.path.insert(0, str(ROOT))  # benchmarks/ is no package that anybody installs
from benchmarks import leaks
from benchmarks.door_fuzz import Seen

REQUESTS = range(200)
STARTS_S = 60.0
# The shipped door, without a server behind it; each request leaves something behind.
DOOR = """
import os, sys, threading, uvicorn
from labdoor import app
how, port = sys.argv[1], int(sys.argv[2])
door, kept = app.make("127.0.0.1:1", {}), []
def keep():
    if how == "memory":
        kept.append(os.urandom(100_000))
    if how == "files":
        kept.append(open(os.devnull))
    if how == "threads":
        kept.append(threading.Thread(target=threading.Event().wait, daemon=True))
        kept[-1].start()
async def leaky(scope, receive, send):
    if scope["type"] == "http":
        keep()
    await door(scope, receive, send)
uvicorn.run(leaky, host="127.0.0.1", port=port, log_level="warning", ws="none")
"""


@pytest.fixture
def door(free_port: int) -> Iterator[Callable[[str], tuple[int, leaks.Parts]]]:
    started: list[subprocess.Popen[bytes]] = []

    def start(how: str) -> tuple[int, leaks.Parts]:
        started.append(subprocess.Popen([sys.executable, "-c", DOOR, how, str(free_port)]))
        for _ in attempts(STARTS_S, 0.1):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{free_port}/metrics", timeout=5).close()
                break
            except OSError:
                continue
        return free_port, {"door": psutil.Process(started[0].pid)}

    yield start
    for one in started:
        one.kill()
        one.wait()


@pytest.fixture
def free_port() -> int:
    with http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as probe:
        return int(probe.server_address[1])


@pytest.mark.parametrize("how", ["", "memory", "files", "threads"])
def test_what_a_door_keeps_of_each_request_is_found_and_the_shipped_one_keeps_nothing(
    how: str, door: Callable[[str], tuple[int, leaks.Parts]]
) -> None:
    port, watched = door(how)
    seen = Seen()
    with ThreadPoolExecutor(8) as pool:
        seen.send(pool, port, REQUESTS)
        before = leaks.held(watched)
        seen.send(pool, port, REQUESTS)
        assert leaks.in_flight([f"127.0.0.1:{port}"]) == []
    assert [line.split()[1] for line in leaks.grown(before, leaks.held(watched))] == ([how] if how else [])
    assert seen.bad == []


def test_a_request_that_stays_in_flight_is_named(free_port: int) -> None:
    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'labs_door_running 0.0\nlabs_running{model="m"} 1\n# HELP labs_waiting 3\n')

    with http.server.HTTPServer(("127.0.0.1", free_port), Page) as server:
        threading.Thread(target=server.serve_forever).start()
        left = leaks.in_flight([f"127.0.0.1:{free_port}"], patience=0.0)
        server.shutdown()
    assert left == ['labs_running{model="m"} 1']


def test_a_part_that_has_ended_is_named() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    process = psutil.Process(ended.pid)
    ended.wait()
    assert leaks.dead({"door": process}) == ["door"]
