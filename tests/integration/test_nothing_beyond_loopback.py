"""No program of a stack listens where another machine could reach it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from lab_server import LabServer
from listening import beyond_loopback, listeners
from machinery import started

pytestmark = pytest.mark.xdist_group("iterative")


def test_a_server_the_openai_api_the_chat_page_and_the_live_page_listen_on_loopback(
    lab_server: Callable[..., LabServer], checkout: Path
) -> None:
    lab_server("iterative")
    before = listeners(checkout)
    with contextlib.ExitStack() as stack:
        for words in (("openai", "--port", "auto", "--json"), ("chat", "--port", "0"), ("watch", "--port", "0")):
            process = stack.enter_context(started(checkout, words[0], "iterative", *words[1:]))
            assert process.stdout and "127.0.0.1" in process.stdout.readline()
        found = listeners(checkout)
    assert "tritonserver" in before
    assert len(found) > len(before), json.dumps(sorted(found))
    assert beyond_loopback(found) == {}
