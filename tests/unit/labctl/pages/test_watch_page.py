"""The page's server: who may ask it, what it takes, and that the page needs nobody else."""

from __future__ import annotations

import http.client
import json
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from lab_errors import lab_error

from labctl.cli.main import cli
from labctl.pages import address as page_address
from labctl.pages import gate
from labctl.pages.live.page import document
from labctl.workspace import Workspace

JSON = {"Content-Type": "application/json"}
# In a process of its own: an event loop in a thread of the tests would outlive its test.
SERVER = """
import threading
from labkit.errors import LabError
from labctl.pages.live.server import WatchServer, acts

class Asker:
    models = ["m"]
    def send(self, model, prompt, tokens, count):
        return [f"{model} {prompt} {tokens}"] * count
    def cancel(self, number):
        return number == "1"

class Clock:
    def act(self, action, amount, model, endpoint=""):
        if amount < 1:
            raise LabError(f"{model or 'it'} is too fast", code="any")
        return {"m": amount} if action == "step" else {}

with WatchServer("<p>the page</p>", None, acts(Asker(), Clock(), "")).serving(0) as address:
    print(address, flush=True)
    threading.Event().wait()
"""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    server = subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout
        yield server.stdout.readline().strip()
    finally:
        server.kill()
        server.communicate()


def call(address: str, method: str, path: str = "", body: Any = None, **headers: str) -> tuple[int, str]:
    host, _, secret = address.removeprefix("http://").partition("/")
    path = path if path.startswith("/") else f"/{secret}{path}"
    connection = http.client.HTTPConnection(host, timeout=60)
    try:
        content = None if body is None else json.dumps(body)
        connection.request(method, path, content, headers={"Host": host, **headers})
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def test_the_page_is_at_its_whole_address_only(address: str) -> None:
    assert call(address, "GET") == (200, "<p>the page</p>")
    assert call(address, "GET", "/")[0] == 404
    assert call(address, "GET", "/wrong/")[0] == 404
    assert call(address, "POST", "/wrong/send", {}, **JSON)[0] == 404


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", ""])
def test_fault_30_a_foreign_name_for_this_machine_is_refused(address: str, host: str) -> None:
    assert call(address, "GET", Host=host)[0] == 403


def test_fault_30_a_call_from_another_page_is_refused(address: str) -> None:
    good = {"model": "m", "prompt": "a", "tokens": 3, "count": 1}
    assert call(address, "POST", "send", good, Origin="http://evil.example", **JSON)[0] == 403
    assert call(address, "POST", "send", good, Origin="null", **JSON)[0] == 403
    host = address.removeprefix("http://").partition("/")[0]
    status, said = call(address, "POST", "send", good, Origin=f"http://{host}", **JSON)
    assert (status, json.loads(said)) == (200, {"sent": ["m a 3"]})


def test_a_forwarded_name_is_answered_only_where_it_was_named() -> None:
    name = "space-7861.app.example"
    for headers in ({"host": name}, {"host": "localhost:7861", "origin": f"https://{name}"}):
        assert gate.objection(headers)
        assert gate.objection(headers, forwarded="other.example")
        assert not gate.objection(headers, forwarded=name)
    assert gate.objection({"host": name, "origin": "https://evil.example"}, forwarded=name)
    assert gate.objection({"host": f"evil.{name}"}, forwarded=name)
    assert not gate.objection({"host": f"{name}:8080", "origin": f"https://{name}:8080"}, forwarded=name)
    assert gate.objection({"host": f"{name}:8080", "origin": f"https://{name}:8081"}, forwarded=name)
    assert gate.objection({})


def test_a_forwarded_name_that_is_an_address_is_refused_by_its_option() -> None:
    done = CliRunner().invoke(cli, ["watch", "iterative", "--forwarded-host", "https://space.example/"])
    assert done.exit_code == 2 and "--forwarded-host takes a name" in done.output


def test_a_form_of_another_page_cannot_send_anything(address: str) -> None:
    good = {"model": "m", "prompt": "a", "tokens": 3, "count": 1}
    assert call(address, "POST", "send", good, **{"Content-Type": "text/plain"})[0] == 415


@pytest.mark.parametrize(
    "wrong",
    [
        {"model": "other"},
        {"count": 2},
        {"count": 10**9},
        {"tokens": 0},
        {"tokens": "3"},
        {"tokens": True},
        {"tokens": 10**9},
        {"prompt": ""},
        {"prompt": None},
        {"prompt": "a" * 30_000},
        {"model": ["m"]},
    ],
)
def test_what_the_page_never_sends_is_refused(address: str, wrong: dict[str, Any]) -> None:
    call_made = {"model": "m", "prompt": "a", "tokens": 3, "count": 1} | wrong
    assert call(address, "POST", "send", call_made, **JSON)[0] in (400, 409)
    assert call(address, "POST", "send", [], **JSON)[0] == 400
    assert call(address, "POST", "nothing", {}, **JSON)[0] == 404


def test_a_name_that_cannot_be_written_is_refused(address: str) -> None:
    assert call(address, "POST", "clock", {"do": "slow", "factor": 0.1, "model": "\ud800"}, **JSON)[0] == 400


def test_a_websocket_has_no_way_around_the_pages_secret(address: str) -> None:
    wanted = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
    key = {"Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ=="}
    assert call(address, "GET", "/wrong/", **wanted, **key)[0] == 404


def test_too_much_is_not_read(address: str) -> None:
    assert call(address, "POST", "cancel", {"n": "1" * 10**6}, **JSON)[0] == 409


def test_the_page_names_no_other_place() -> None:
    for page in (document(), document({"head": {}, "events": []})):
        assert not re.findall(r"""(?:src|href|action)\s*=\s*["'][^"']""", page)
        assert not re.findall(r"https?:|@import|url\(", page)


def test_fault_30_no_text_of_a_recording_ends_the_script_that_holds_it() -> None:
    evil = "</script><script>alert(1)</script><!--"
    page = document({"head": {"title": evil}, "events": []})
    assert evil not in page
    held = re.search(r'id="recording">(.*?)</script>', page, re.S)
    assert held and json.loads(held[1])["head"]["title"] == evil


def test_a_page_finds_the_other_one_where_it_answers_by_a_file_of_its_user_alone(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path, tmp_path)
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        where = f"http://127.0.0.1:{listening.getsockname()[1]}/secret/"
        with page_address.publish_address(workspace, "s", page_address.WATCH, where):
            (file,) = workspace.folder("s").path.iterdir()
            assert file.stat().st_mode & 0o777 == 0o600
            assert page_address.page_address(workspace, "s", page_address.WATCH) == where
            assert page_address.page_address(workspace, "s", page_address.CHAT) is None
            listening.close()
            assert page_address.page_address(workspace, "s", page_address.WATCH) is None
    assert not list(workspace.folder("s").path.iterdir())


@pytest.mark.parametrize("page", ["watch", "chat"])
def test_a_taken_port_is_another_one_unless_somebody_asked_for_it(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with page_address.listening_socket(0, page) as first:
        first.listen()
        taken = first.getsockname()[1]
        monkeypatch.setitem(page_address.PORTS, page, taken)
        with page_address.listening_socket(None, page) as second:
            assert second.getsockname()[1] not in (0, taken)
        with lab_error("port-taken", taken):
            page_address.listening_socket(taken, page)


@pytest.mark.parametrize("command", ["watch", "chat"])
@pytest.mark.parametrize("words", [("--ports", "auto"), ("--port", "auto"), ("--port", "0"), ("--ports", "7999")])
def test_a_page_takes_the_port_option_of_up(command: str, words: tuple[str, ...]) -> None:
    said = CliRunner().invoke(cli, [command, "no-such-stack", *words]).output
    assert "Usage" not in said


@pytest.mark.parametrize("port", ["65536", "anything"])
def test_a_port_that_is_none_is_refused(port: str) -> None:
    assert CliRunner().invoke(cli, ["watch", "no-such-stack", "--ports", port]).exit_code == 2


def test_of_two_pages_of_a_stack_the_first_to_end_leaves_the_other_to_be_found(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path, tmp_path)
    with page_address.publish_address(workspace, "s", page_address.WATCH, "http://127.0.0.1:1/later/"):
        with page_address.publish_address(workspace, "s", page_address.WATCH, "http://127.0.0.1:1/other/"):
            (file,) = workspace.folder("s").path.iterdir()
            file.write_text("http://127.0.0.1:1/later/")
        assert file.exists()
    assert not file.exists()
