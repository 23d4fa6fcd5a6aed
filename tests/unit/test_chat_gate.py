"""What reaches the chat page: its own calls, from its own address, with what its fields can hold."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from labctl.pages.gate import is_own

HISTORY = [{"role": "user", "content": [{"type": "text", "text": "earlier"}]}]
DIALS = [0, 50, 0, -1]
CALL = {
    "fn_index": 1,
    "data": ["a", HISTORY, "m", 8, *DIALS],
    "session_hash": "abc",
    "event_data": None,
    "trigger_id": 1,
}
JSON = {"Content-Type": "application/json"}


# A page whose model answers at once, in a process of its own: Gradio leaves event loops open when it ends.
PAGE = """
import sys
from pathlib import Path
from labctl.pages import chat
from labkit.clients import conversation
from labkit.clients.text_model import TextModel

TextModel.of = lambda endpoint, name: TextModel("m", {}, "text_input", "", "text_output", decoupled=True)
conversation.ask = lambda *asked: iter([conversation.Answer("a b", "fast")])
def live_page():
    return Path(sys.argv[1]).read_text() if Path(sys.argv[1]).exists() else ""

page = chat.Page("nowhere:1", ["m"], "m", "", "A lab", chat.Scheduler("labctl watch lab", live_page))
with chat.serve(page, "127.0.0.1", 0) as where:
    print(where.removeprefix("http://"), flush=True)
    chat.wait()
"""


@pytest.fixture(scope="module")
def errors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("page") / "stderr"


@pytest.fixture(scope="module")
def address(errors: Path) -> Iterator[str]:
    with errors.open("w") as stream:
        page = subprocess.Popen(
            [sys.executable, "-c", PAGE, str(errors.with_name("live"))],
            stdout=subprocess.PIPE,
            stderr=stream,
            text=True,
        )
        try:
            assert page.stdout
            yield page.stdout.readline().strip()
        finally:
            page.kill()
            page.communicate()


def call(address: str, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(address, timeout=20)
    try:
        sent = body if isinstance(body, bytes | str | None) else json.dumps(body)
        connection.request(method, path, sent, {**(JSON if sent else {}), **headers})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def test_the_pages_own_call_is_answered(address: str) -> None:
    assert call(address, "GET", "/")[0] == 200
    joined, _ = call(address, "POST", "/gradio_api/queue/join", CALL, Origin=f"http://{address}")
    assert joined == 200
    _, events = call(address, "GET", "/gradio_api/queue/data?session_hash=abc")
    assert b"a b" in events and b'"success":true' in events


@pytest.mark.parametrize(
    "body",
    [
        "{",
        "[]",
        "[" * 100_000,
        {"data": []},
        {**CALL, "fn_index": 99},
        {**CALL, "fn_index": 0},  # the Clear button's, which is the browser's alone
        {**CALL, "fn_index": [1]},
        {**CALL, "data": ["a", HISTORY, "m", 8]},
        {**CALL, "data": [7, HISTORY, "m", 8, *DIALS]},
        {**CALL, "data": ["a", HISTORY, "no such model", 8, *DIALS]},
        {**CALL, "data": ["a", HISTORY, "m", 1e999, *DIALS]},
        {**CALL, "data": ["a", [{"role": "user", "content": {"path": "/etc/passwd"}}], "m", 8, *DIALS]},
        {**CALL, "session_hash": "../x"},
    ],
    ids=lambda body: str(body)[:60],
)
def test_a_malformed_call_is_refused_without_a_traceback(address: str, errors: Path, body: Any) -> None:
    status, answer = call(address, "POST", "/gradio_api/queue/join", body)
    assert (status, json.loads(answer)) == (400, {"detail": "this is no call that the page makes"})
    assert "Traceback" not in errors.read_text()


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/gradio_api/upload"),
        ("GET", "/gradio_api/file=/etc/passwd"),
        ("GET", "/gradio_api/proxy=http://127.0.0.1"),
        ("POST", "/gradio_api/run/predict"),
        ("POST", "/gradio_api/call/f"),
        ("GET", "/monitoring"),
        ("DELETE", "/"),
    ],
)
def test_what_the_page_does_not_have_is_not_there(address: str, method: str, path: str) -> None:
    assert call(address, method, path, "x" if method == "POST" else None)[0] == 404


def test_a_foreign_host_and_a_foreign_page_are_refused(address: str) -> None:
    assert call(address, "GET", "/config", Host="evil.example")[0] == 403
    assert call(address, "GET", "/config", Host="127.0.0.1.evil.example")[0] == 403
    assert call(address, "POST", "/gradio_api/queue/join", CALL, Origin="http://evil.example")[0] == 403
    assert call(address, "GET", "/config", Host="localhost:1")[0] == 200


def test_the_link_to_the_live_page_leads_there_while_it_is_open(address: str, errors: Path) -> None:
    status, said = call(address, "GET", "/scheduler")
    assert (status, b"labctl watch lab" in said) == (404, True)
    errors.with_name("live").write_text("http://127.0.0.1:1/secret/")
    connection = http.client.HTTPConnection(address, timeout=20)
    connection.request("GET", "/scheduler")
    response = connection.getresponse()
    assert (response.status, response.getheader("location")) == (303, "http://127.0.0.1:1/secret/")
    connection.close()
    page = call(address, "GET", "/config")[1]
    assert b"/scheduler" in page and b"secret" not in page, "the page itself holds no secret"
    assert call(address, "GET", "/scheduler", Host="evil.example")[0] == 403
    errors.with_name("live").unlink()


def test_a_call_without_end_is_cut(address: str) -> None:
    assert call(address, "POST", "/gradio_api/queue/join", b" " * (5 * 2**20))[0] == 413


def test_where_the_page_is_exposed_addresses_are_good_hosts_and_foreign_names_are_not() -> None:
    assert is_own("192.0.2.7:7860", exposed=True) and is_own("[2001:db8::1]:7860", exposed=True)
    assert not is_own("192.0.2.7:7860", exposed=False)
    assert not is_own("evil.example:7860", exposed=True)
    assert not is_own("", exposed=True)
