"""``--endpoint``: a server is asked that need not be a stack of this checkout, and from anywhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import openai
import pytest
from each_lab import PROMPT
from lab_server import LabServer
from machinery import labctl, started
from waiting import DEADLINE_S

MODEL = "iterative-gpt2"
TOKENS = 8

pytestmark = pytest.mark.xdist_group("iterative")


def test_a_server_is_asked_from_a_folder_that_is_no_checkout(
    lab_server: Callable[..., LabServer], checkout: Path, tmp_path: Path
) -> None:
    server = lab_server("iterative")
    words = ("-p", PROMPT, "-o", str(TOKENS))
    ours = labctl("infer", "iterative", "-m", MODEL, *words, root=checkout).stdout
    assert labctl("infer", "--endpoint", server.grpc, "-m", MODEL, *words, root=tmp_path).stdout == ours
    counted = labctl("metrics", "--endpoint", server.metrics, root=tmp_path).stdout
    assert MODEL in counted and "exec count" in counted
    unnamed = labctl("infer", "--endpoint", server.grpc, *words, root=tmp_path, check=False)
    assert unnamed.returncode == 2 and "-m NAME" in unnamed.stderr
    for command in ("infer", "metrics", "bench", "openai"):
        more = words if command == "infer" else ()
        assert labctl(command, *more, root=tmp_path, check=False).returncode == 2, "neither STACK nor --endpoint"


def test_a_stack_names_the_model_at_an_endpoint_although_it_is_not_up(
    lab_server: Callable[..., LabServer], checkout: Path, tmp_path: Path
) -> None:
    server = lab_server("iterative")
    words = ("-p", PROMPT, "-o", str(TOKENS))
    ours = labctl("infer", "iterative", *words, root=checkout).stdout
    elsewhere = str(another_checkout(tmp_path, checkout))
    asked = labctl("infer", "iterative", "--endpoint", server.grpc, *words, root=tmp_path, LABS_ROOT=elsewhere)
    assert asked.stdout == ours


def another_checkout(folder: Path, checkout: Path) -> Path:
    """The same labs, of which nothing is up."""
    root = folder / "another"
    root.mkdir()
    for name in ("pyproject.toml", "labs", "model_repos"):
        (root / name).symlink_to(checkout / name)
    return root


@pytest.mark.parametrize("counted", [True, False])
def test_a_server_is_measured_as_it_is_and_nothing_is_written_but_the_result(
    lab_server: Callable[..., LabServer], tmp_path: Path, counted: bool
) -> None:
    server = lab_server("iterative")
    words = ["bench", "--endpoint", server.grpc, "-m", MODEL, "--concurrency", "1,2", "--request-count", "4"]
    words += ["--output-tokens", str(TOKENS), "--output", "result.json"]
    words += ["--metrics-endpoint", server.metrics] if counted else []
    done = labctl(*words, root=tmp_path)
    assert "2 in flight" in done.stdout
    result = json.loads((tmp_path / "result.json").read_text())
    assert len(result["requests"]) == 8
    assert all(len(request["responses"]) == TOKENS for request in result["requests"])
    assert all(("triton" in one) == counted for one in result["metrics"].values())
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]
    refused = labctl(*words, "--runtime", "local", root=tmp_path, check=False)
    assert refused.returncode == 2 and "without --runtime" in refused.stderr


def test_the_openai_api_is_served_in_front_of_any_server(lab_server: Callable[..., LabServer], tmp_path: Path) -> None:
    server = lab_server("iterative")
    words = ("openai", "--endpoint", server.grpc, "-m", MODEL, "--port", "auto", "--json")
    with started(tmp_path, *words) as process:
        assert process.stdout
        address = json.loads(process.stdout.readline())["openai"]
        with openai.OpenAI(base_url=address, api_key="none", max_retries=0) as client:
            assert [model.id for model in client.models.list()] == [MODEL]
            answer = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=TOKENS)
    assert answer.choices[0].text


def test_a_shell_beside_a_stack_on_this_machine_has_its_addresses_and_labctl(
    lab_server: Callable[..., LabServer], checkout: Path
) -> None:
    server = lab_server("iterative")
    script = "command -v labctl; echo $TRITON_HTTP $TRITON_GRPC $TRITON_METRICS; exit 5"
    done = subprocess.run(
        [sys.executable, "-m", "labctl", "shell", "iterative"],
        cwd=checkout,
        env={**os.environ, "SHELL": "/bin/sh"},
        input=script,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 5, done.stderr
    where, addresses = done.stdout.splitlines()
    assert Path(where).parent == Path(sys.executable).parent
    assert addresses.split() == [server.http, server.grpc, server.metrics]
