"""Upstream's tests on another server: what counts as passed, as failed, and as not applicable."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from benchmarks import upstream_tests
from benchmarks.upstream_tests import FAILED, NOT_APPLICABLE, PASSED
from labkit.errors import LabError

CONFTEST = """
import os, pytest
from fastapi.testclient import TestClient
from tests.utils import OpenAIServer, setup_fastapi_app, setup_server

@pytest.fixture
def model():
    return os.environ["TEST_MODEL"]

@pytest.fixture
def client():
    server = setup_server(model_repository="x")
    with TestClient(setup_fastapi_app(tokenizer="", server=server, backend="vllm")) as client:
        yield client
    server.stop()

@pytest.fixture(scope="module")
def server():
    with OpenAIServer(["--model-repository", "x"]) as started:
        yield started
"""
TESTS = """
import pytest, tritonserver

def test_right(client, model):
    assert client.post("/v1/completions", json={"model": model}).json() == {"model": "m"}

def test_wrong(client, model):
    assert client.post("/v1/completions", json={"model": model}).status_code == 418

def test_unable(client, model):
    assert client.post("/v1/completions", json={"model": model, "logprobs": 2}).status_code == 200

@pytest.mark.parametrize("n", [2])
def test_choices(client, n):
    assert False

@pytest.mark.skip(reason="later")
def test_later():
    pass

async def test_unable_too(server, model):
    client = server.get_async_client()
    await client.completions.create(model=model, prompt="x", logprobs=2)
"""
REFUSAL = {"error": {"code": "unsupported_parameter", "message": "no logprobs", "param": "logprobs", "type": "x"}}


@contextmanager
def answering() -> Iterator[str]:
    """A server that gives back what it is sent, and refuses logprobs."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            sent = json.loads(self.rfile.read(int(self.headers["content-length"])))
            body = json.dumps(REFUSAL if "logprobs" in sent else sent).encode()
            self.send_response(400 if "logprobs" in sent else 200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_each_test_has_an_outcome_with_its_reason(tmp_path: Path) -> None:
    folder = tmp_path / "tests"
    folder.mkdir()
    files = {"__init__": "", "conftest": CONFTEST, "test_a": TESTS, "test_b": "import not_there", "test_c": "import no"}
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    before = sorted(folder.iterdir())
    with answering() as url:
        found = upstream_tests.run(
            upstream_tests.find(folder), url, "m", {"test_c.py": "no c"}, {r"test_choices\[": "one is enough"}
        )
    assert {(one.test, one.result, one.reason) for one in found} == {
        ("test_a.py::test_right", PASSED, ""),
        ("test_a.py::test_wrong", FAILED, "assert 200 == 418"),
        ("test_a.py::test_unable", NOT_APPLICABLE, "no logprobs"),
        ("test_a.py::test_unable_too", NOT_APPLICABLE, "no logprobs"),
        ("test_a.py::test_choices[2]", NOT_APPLICABLE, "one is enough"),
        ("test_a.py::test_later", NOT_APPLICABLE, "upstream skips it: later"),
        ("test_b.py", FAILED, "not collected: ModuleNotFoundError: No module named 'not_there'"),
        ("test_c.py", NOT_APPLICABLE, "no c"),
    }
    assert sorted(folder.iterdir()) == before, "the person's folder is left as it was"


def test_a_folder_without_upstreams_tests_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="does not hold the tests"):
        upstream_tests.find(tmp_path)
