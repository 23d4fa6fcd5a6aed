"""The clients of docs/operate/security.md before an exposed stack of lab 02: its own lines, run as they stand there."""

from __future__ import annotations

import json
import queue
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from checkout import ROOT
from gpt2_streams import text_input
from lab_server import LabServer
from machinery import labctl
from tritonclient import http as over_http
from tritonclient.grpc import InferenceServerClient, InferenceServerException

PAGE = ROOT / "docs" / "operate" / "security.md"
MODEL, PROMPT = "simple-gpt2", "I have lived in"
pytestmark = pytest.mark.xdist_group("test_hostile_sequences")  # whose server this one takes the place of


@dataclass(frozen=True)
class Exposed:
    http: str
    grpc: str
    metrics: str
    token: str

    def code(self, section: str, language: str) -> str:
        """The code of a section of the page, for this server."""
        text = PAGE.read_text().partition(f"### {section}\n")[2].partition("\n## ")[0].partition("\n### ")[0]
        (code,) = re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)
        for port, endpoint in (("8000", self.http), ("8001", self.grpc), ("8002", self.metrics)):
            code = code.replace(f"HOST:{port}", endpoint)
        return str(code)

    def run(self, *command: str) -> str:
        env = {"PATH": "/usr/bin:/bin", "TOKEN": self.token}
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=env, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def exposed(lab_server: Callable[..., LabServer], checkout: Path) -> Exposed:
    lab_server("iterative", "--expose", threads=1)
    shown = json.loads(labctl("status", "iterative", "--json", root=checkout).stdout)["published"]
    token = labctl("status", "iterative", "--token", root=checkout).stdout.strip()
    places = {name: endpoint.replace("0.0.0.0", "127.0.0.2") for name, endpoint in shown.items()}
    return Exposed(**places, token=token)


def test_curl(exposed: Exposed) -> None:
    assert '"text_output"' in exposed.run("bash", "-c", exposed.code("curl", "bash"))


def test_tritonclient_with_headers(exposed: Exposed) -> None:
    assert 'name: "triton"' in exposed.run(sys.executable, "-c", exposed.code("tritonclient", "python"))


SENDS = """
import queue
import numpy as np
from tritonclient.grpc import InferInput

answers = queue.Queue()
tensor = InferInput("text_input", [1, 1], "BYTES")
tensor.set_data_from_numpy(np.array([["I have lived in"]], dtype=np.object_))
client.start_stream(lambda result, error: answers.put((result, error)))
client.async_stream_infer(
    "simple-gpt2", [tensor], parameters={"max_tokens": 3, "ignore_eos": True}, enable_empty_final_response=True
)
for _ in range(3):
    result, error = answers.get(timeout=60)
    assert error is None, error
    print(result.as_numpy("text_output")[0].decode(), end="")
client.stop_stream()
"""


def test_a_client_of_the_original_lab_02_with_the_plugin(exposed: Exposed) -> None:
    plugin = exposed.code("A client that you do not want to change", "python")
    said = exposed.run(sys.executable, "-c", plugin + SENDS)
    assert said and said == streamed(exposed)


def streamed(exposed: Exposed) -> str:
    """The same answer over a stream that was given the header itself."""
    answers: queue.Queue[Any] = queue.Queue()
    with InferenceServerClient(exposed.grpc) as client:
        headers = {"authorization": f"Bearer {exposed.token}"}
        client.start_stream(lambda result, error: answers.put((result, error)), headers=headers)
        sent = {"max_tokens": 3, "ignore_eos": True}
        client.async_stream_infer(MODEL, [text_input(PROMPT.encode())], parameters=sent)
        pieces = []
        for _ in range(3):
            result, error = answers.get(timeout=60)
            assert error is None
            pieces.append(result.as_numpy("text_output")[0].decode())
    return "".join(pieces)


def test_tritonclient_shows_what_to_do_where_the_token_is_missing(exposed: Exposed) -> None:
    clients: tuple[Any, ...] = (InferenceServerClient(exposed.grpc), over_http.InferenceServerClient(exposed.http))
    for client in clients:
        with client, pytest.raises(InferenceServerException) as refused:
            client.get_server_metadata()
        assert "authorization: Bearer TOKEN" in str(refused.value)
        assert refused.value.status() in ("StatusCode.UNAUTHENTICATED", "401")
