"""The files of TLS at the command line's edge."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest
from certificates import authority, pair
from click.testing import CliRunner
from lab_errors import lab_error

from labctl.cli.openai import openai_command
from labctl.cli.stacks import up_command
from labkit.tls import CertificatePair


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("tls")
    authority(made)
    return made


def test_a_certificate_with_its_key_is_what_a_server_can_listen_with(folder: Path) -> None:
    assert pair(folder).context().minimum_version == ssl.TLSVersion.TLSv1_2


def test_a_key_that_others_can_read_is_refused_with_the_command_that_helps(folder: Path) -> None:
    made = pair(folder, "open")
    made.key.chmod(0o644)
    with lab_error("tls-key-exposed") as caught:
        made.context()
    assert caught.value.remedy == f"chmod o= {made.key}"
    made.key.chmod(0o640)
    made.context()


def test_a_key_of_another_certificate_is_refused(folder: Path) -> None:
    one, other = pair(folder, "one"), pair(folder, "other")
    with lab_error("tls-pair-mismatch"):
        CertificatePair(one.certificate, other.key).context()


def test_a_certificate_that_has_expired_is_refused(folder: Path) -> None:
    with lab_error("tls-certificate-invalid", "expired"):
        pair(folder, "old", days=-1).context()


def test_an_encrypted_key_is_refused_and_nobody_is_asked_for_its_password(folder: Path) -> None:
    made = pair(folder, "locked")
    locked = folder / "locked.enc"
    words = ["openssl", "pkey", "-in", str(made.key), "-aes256", "-passout", "pass:secret", "-out", str(locked)]
    subprocess.run(words, check=True, timeout=60)
    locked.chmod(0o600)
    with lab_error("tls-key-encrypted"):
        CertificatePair(made.certificate, locked).context()


def test_a_file_that_is_missing_or_no_certificate_is_named(folder: Path) -> None:
    made = pair(folder, "there")
    with lab_error("tls-file-unreadable", "--tls-cert", "missing.pem"):
        CertificatePair(folder / "missing.pem", made.key).context()
    with lab_error("tls-files-invalid"):
        CertificatePair(made.key, made.key).context()


@pytest.mark.parametrize(
    ("command", "words", "said"),
    [
        (openai_command, ["--tls-cert", "x.pem"], "give both"),
        (up_command, ["--openai", "--tls-key", "x.key"], "give both"),
        (up_command, [], "add --openai"),
    ],
)
def test_options_that_make_no_sense_alone_are_a_usage_error(
    command: Any, words: list[str], said: str, folder: Path
) -> None:
    made = pair(folder, "usage")
    words = words or ["--tls-cert", str(made.certificate), "--tls-key", str(made.key)]
    done = CliRunner().invoke(command, ["iterative", *words])
    assert (done.exit_code, said in done.output) == (2, True)
