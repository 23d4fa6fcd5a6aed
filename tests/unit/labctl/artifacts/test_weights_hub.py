"""Weights from the model hub, through a fake of its HTTP interface, in a process of its own as labctl runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from checkout import ROOT
from fake_hub import COMMIT, FakeHub, serve
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

from labctl.artifacts.hub import explain
from labctl.artifacts.weights import parse_source

TOKEN = "hf_thisisasecretthatmustnotshow"
FILES = {
    "config.json": b'{"model_type": "gpt2"}',
    "tokenizer.json": b"{}",
    "model.safetensors": bytes(range(256)) * 4096,
    "pytorch_model.bin": b"not wanted beside safetensors",
    "README.md": b"not wanted",
}


@pytest.fixture
def hub() -> FakeHub:
    return FakeHub(FILES)


@pytest.fixture
def endpoint(hub: FakeHub) -> Iterator[str]:
    with serve(hub) as where:
        yield where


SPEC = f"hub:org/model@{COMMIT}"


def environment(endpoint: str, cache: Path) -> dict[str, str]:
    usual = {"HF_ENDPOINT": endpoint, "LABS_CACHE": str(cache), "HF_HOME": str(cache / "home")}
    return os.environ | usual | {"HF_HUB_DISABLE_XET": "1", "HF_HUB_DOWNLOAD_TIMEOUT": "5"}


def fetch(endpoint: str, cache: Path, spec: str = SPEC, **env: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "labctl.artifacts", "pull", spec],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=environment(endpoint, cache) | env,
    )
    assert TOKEN not in done.stdout + done.stderr
    return done.returncode, done.stdout, done.stderr


def test_a_snapshot_is_fetched_with_the_wanted_files_only(endpoint: str, hub: FakeHub, tmp_path: Path) -> None:
    code, out, err = fetch(endpoint, tmp_path, HF_TOKEN=TOKEN)
    assert code == 0, err
    path = Path(json.loads(out)["path"])
    wanted = {"config.json", "model.safetensors", "tokenizer.json"}
    assert {file.name for file in path.iterdir()} == {*wanted, "weights.json"}
    assert (path / "model.safetensors").read_bytes() == hub.files["model.safetensors"]
    assert json.loads((path / "weights.json").read_text())["revision"] == COMMIT
    assert f"Bearer {TOKEN}" in hub.tokens
    assert not list(tmp_path.glob("weights/.*partial"))


def refusal(err: str) -> list[str]:
    """The code of the error that ended it, and what it says."""
    assert "Traceback" not in err
    return [str(each) for each in json.loads(err.splitlines()[-1].removeprefix("labctl-error "))]


# Pulls SPEC once for each line, with that token, and answers with the status and what stands on stderr.
PULLS = """
import contextlib, io, json, os, sys
from labctl.artifacts.__main__ import main
for line in sys.stdin:
    os.environ.pop("HF_TOKEN", None)
    if token := json.loads(line):
        os.environ["HF_TOKEN"] = token
    with contextlib.redirect_stderr(io.StringIO()) as err:
        status = main(["pull", sys.argv[1]])
    print(json.dumps([status, err.getvalue()]), flush=True)
"""


@pytest.fixture(scope="module")
def refused(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str, str], tuple[int, str]]]:
    """``refused("401", token)``: the status and the stderr of a pull from a hub with that fault, all of one process."""
    hub, cache = FakeHub(FILES), tmp_path_factory.mktemp("refused")
    argv = [sys.executable, "-c", PULLS, SPEC]
    with (
        serve(hub) as where,
        subprocess.Popen(
            argv, cwd=ROOT, env=environment(where, cache), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as pulling,
    ):

        def ask(fault: str, token: str) -> tuple[int, str]:
            assert pulling.stdin and pulling.stdout
            hub.fault = fault
            print(json.dumps(token), file=pulling.stdin, flush=True)
            status, err = json.loads(line := pulling.stdout.readline())
            assert TOKEN not in line
            return status, err

        yield ask


@pytest.mark.parametrize(
    ("fault", "token", "code", "said"),
    [
        ("401", "", "hub-refused", "no token is set"),
        ("401", TOKEN, "hub-refused", "the token in use"),
        ("gated", TOKEN, "hub-terms-unaccepted", "(403)"),
        ("gated-stranger", "", "hub-terms-unaccepted", "no token is set"),
        ("no-repo", "", "hub-model-unknown", "org/model"),
        ("no-revision", "", "hub-revision-unknown", COMMIT),
        ("404", "", "hub-status", "404"),
        ("429", "", "hub-status", "429"),
        ("503", "", "hub-status", "503"),
        ("elsewhere", "", "hub-foreign", ""),
        ("for-ever", "", "hub-foreign", ""),
    ],
)
def test_fault_23_each_refusal_of_the_hub_has_its_own_message(
    refused: Callable[[str, str], tuple[int, str]], fault: str, token: str, code: str, said: str
) -> None:
    ended, err = refused(fault, token)
    found, *words = refusal(err)
    assert (ended, found, said in "".join(words)) == (1, code, True)


def test_a_refusal_of_a_file_is_told_by_its_status() -> None:
    """The hub's package says of it that the file is not cached, because of the refusal."""
    response = httpx.Response(429, request=httpx.Request("HEAD", "http://hub"))
    error = LocalEntryNotFoundError("not cached")
    error.__cause__ = HfHubHTTPError("Too Many Requests", response=response)
    assert explain(error, "org/model", "").code == "hub-status"


def test_fault_23_no_network_is_told_as_such(tmp_path: Path) -> None:
    code, _, err = fetch("http://127.0.0.1:9", tmp_path)
    assert code == 1
    assert refusal(err)[0] == "hub-unreachable"


def test_fault_23_what_is_cached_works_without_a_network(endpoint: str, tmp_path: Path) -> None:
    assert fetch(endpoint, tmp_path)[0] == 0
    code, out, err = fetch("http://127.0.0.1:9", tmp_path, HF_HUB_OFFLINE="1")
    assert code == 0
    assert "offline: the cached copy is used" in err
    assert "path" in json.loads(out)


def test_a_download_that_is_cut_goes_on_where_it_was(endpoint: str, hub: FakeHub, tmp_path: Path) -> None:
    hub.files = FILES | {"model.safetensors": bytes(range(256)) * 100_000}  # more than one chunk of a download
    hub.fault = "cut"
    code, out, err = fetch(endpoint, tmp_path)
    assert code == 0, err
    assert hub.ranges, "it began from the start again"
    assert Path(json.loads(out)["path"], "model.safetensors").read_bytes() == hub.files["model.safetensors"]


def test_what_an_attempt_left_of_another_commit_is_not_in_the_snapshot(
    endpoint: str, hub: FakeHub, tmp_path: Path
) -> None:
    partial = tmp_path / "weights" / f".{parse_source('hub:org/model').key}.partial"
    partial.mkdir(parents=True)
    (partial / "model-00002-of-00002.safetensors").write_bytes(b"of the commit before")
    code, out, err = fetch(endpoint, tmp_path, "hub:org/model")
    assert code == 0, err
    fetched = {file.name for file in Path(json.loads(out)["path"]).iterdir()}
    assert fetched == {"config.json", "model.safetensors", "tokenizer.json", "weights.json"}
    assert not partial.exists()
