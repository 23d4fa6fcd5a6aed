"""The OpenAI API over TLS: OpenAI's own client verifies the certificate, and plain HTTP gets nothing."""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable
from pathlib import Path

import openai
import pytest
import requests
from certificates import authority, pair
from each_lab import PROMPT
from lab_server import LabServer
from machinery import labctl, started
from own_stack import leftovers, shown

from labkit.tls import CertificatePair

pytestmark = pytest.mark.night

MODEL = "simple-gpt2"


def options(made: CertificatePair) -> tuple[str, ...]:
    return "--tls-cert", str(made.certificate), "--tls-key", str(made.key)


def client(address: str, token: str, root: Path) -> openai.OpenAI:
    """OpenAI's, which trusts the authority in ``root``."""
    trusting = openai.DefaultHttpxClient(verify=ssl.create_default_context(cafile=str(root / "ca.pem")))
    return openai.OpenAI(base_url=address, api_key=token, http_client=trusting, max_retries=0)


def test_an_exposed_api_with_a_certificate_speaks_https_alone_and_still_needs_its_token(
    own: Path, tmp_path: Path
) -> None:
    authority(tmp_path)
    made = pair(tmp_path)
    words = ("--openai", "--expose", "--runtime", "local", "--ports", "auto", *options(made))
    said = labctl("up", "iterative", *words, root=own)
    address = shown(own)["openai"]
    assert address.startswith("https://127.0.0.1:")
    assert address in said.stdout
    token = labctl("status", "iterative", "--token", root=own).stdout.strip()
    elsewhere = address.replace("127.0.0.1", "127.0.0.2")
    with client(elsewhere, "none", tmp_path) as stranger, pytest.raises(openai.AuthenticationError):
        stranger.completions.create(model=MODEL, prompt=PROMPT, max_tokens=2)
    with client(elsewhere, token, tmp_path) as trusting:
        chunks = trusting.completions.create(model=MODEL, prompt=PROMPT, max_tokens=4, stream=True)
        assert "".join(chunk.choices[0].text for chunk in chunks)
    with openai.OpenAI(base_url=address, api_key=token, max_retries=0) as unaware:
        with pytest.raises(openai.APIConnectionError) as refused:
            unaware.models.list()
        assert "CERTIFICATE_VERIFY_FAILED" in repr(refused.value.__cause__)
    with pytest.raises(requests.ConnectionError):
        requests.get(address.replace("https", "http").replace("/v1", "/health"), timeout=60)
    secret = made.key.read_text()
    assert [path for path in own.rglob("*") if path.is_file() and secret in path.read_text(errors="replace")] == []
    labctl("down", "iterative", root=own)
    assert leftovers(own) == []
    assert made.key.read_text() == secret


def test_an_api_that_runs_without_tls_is_not_taken_for_one_with_it(own: Path, tmp_path: Path) -> None:
    authority(tmp_path)
    words = ("up", "iterative", "--openai", "--runtime", "local", "--ports", "auto")
    labctl(*words, root=own)
    again = labctl(*words, *options(pair(tmp_path)), root=own, check=False)
    assert again.returncode == 1
    assert "it runs without TLS at http://" in " ".join(again.stderr.split())


@pytest.mark.xdist_group("iterative")
def test_one_beside_a_stack_prints_its_https_address_and_a_bad_key_starts_nothing(
    checkout: Path, lab_server: Callable[..., LabServer], tmp_path: Path
) -> None:
    lab_server("iterative")
    authority(tmp_path)
    made = pair(tmp_path)
    with started(checkout, "openai", "iterative", "--port", "auto", "--json", *options(made)) as running:
        assert running.stdout
        address = json.loads(running.stdout.readline())["openai"]
        with client(address, "none", tmp_path) as trusting:
            assert MODEL in [model.id for model in trusting.models.list()]
    made.key.chmod(0o644)
    refused = labctl("openai", "iterative", "--port", "auto", *options(made), root=checkout, check=False)
    assert refused.returncode == 1
    assert f"chmod o= {made.key}" in " ".join(refused.stderr.split())
