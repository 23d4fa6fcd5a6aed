"""A process is started while a gRPC stream is open, as a check calls a learner's function: nothing of gRPC is in it."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import subprocess, sys
from concurrent.futures import ThreadPoolExecutor
import labkit.client
import grpc

channel = grpc.insecure_channel("127.0.0.1:1")

def ask(number):
    try:
        channel.unary_unary("/a/b")(b"", timeout=3, wait_for_ready=True)
    except grpc.RpcError:
        pass

with ThreadPoolExecutor(2) as threads:
    threads.map(ask, range(2))
    for _ in range(40):
        subprocess.run([sys.executable, "-S", "-c", ""], start_new_session=True, preexec_fn=lambda: None)
"""


def test_a_process_that_is_started_beside_a_stream_meets_no_handler_of_grpc() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert "fork" not in done.stderr and "epoll" not in done.stderr.lower()
