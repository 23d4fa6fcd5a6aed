"""The files of TLS at the command line's edge, and a door that speaks nothing else."""

from __future__ import annotations

import asyncio
import socket
import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest
from certificates import authority, pair
from click.testing import CliRunner

from labctl.cli.openai import openai_command
from labctl.cli.stacks import up_command
from labdoor import tls
from labkit.errors import LabError
from labkit.tls import Pair


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
    with pytest.raises(LabError, match="not private") as caught:
        made.context()
    assert caught.value.remedy == f"chmod o= {made.key}"
    made.key.chmod(0o640)
    made.context()


def test_a_key_of_another_certificate_is_refused(folder: Path) -> None:
    one, other = pair(folder, "one"), pair(folder, "other")
    with pytest.raises(LabError, match="do not belong together"):
        Pair(one.certificate, other.key).context()


def test_a_certificate_that_has_expired_is_refused(folder: Path) -> None:
    with pytest.raises(LabError, match="certificate has expired"):
        pair(folder, "old", days=-1).context()


def test_an_encrypted_key_is_refused_and_nobody_is_asked_for_its_password(folder: Path) -> None:
    made = pair(folder, "locked")
    words = [
        "openssl",
        "pkey",
        "-in",
        str(made.key),
        "-aes256",
        "-passout",
        "pass:secret",
        "-out",
        str(folder / "locked.enc"),
    ]
    subprocess.run(words, check=True, timeout=60)
    (folder / "locked.enc").chmod(0o600)
    with pytest.raises(LabError, match="is encrypted"):
        Pair(made.certificate, folder / "locked.enc").context()


def test_a_file_that_is_missing_or_no_certificate_is_named(folder: Path) -> None:
    made = pair(folder, "there")
    with pytest.raises(LabError, match=r"--tls-cert: .*missing.pem cannot be read"):
        Pair(folder / "missing.pem", made.key).context()
    with pytest.raises(LabError, match="are no certificate and its key"):
        Pair(made.key, made.key).context()


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


class Echo(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport

    def data_received(self, data: bytes) -> None:
        self._transport.write(data)


async def _asked(context: ssl.SSLContext, client: Any) -> bytes:
    """What a client's function gets from a server with that certificate, in a thread of its own."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        accepting = asyncio.create_task(tls.accept(listening, context, Echo))
        found: bytes = await asyncio.to_thread(client, listening.getsockname()[1])
        accepting.cancel()
        await asyncio.gather(accepting, return_exceptions=True)
        return found


def _over_tls(folder: Path, port: int) -> bytes:
    trusting = ssl.create_default_context(cafile=folder / "ca.pem")
    with (
        socket.create_connection(("127.0.0.1", port), timeout=60) as plain,
        trusting.wrap_socket(plain, server_hostname="127.0.0.1") as connection,
    ):
        connection.sendall(b"hello")  # in one flight with the end of the handshake
        return connection.recv(100)


def _over_http(port: int) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=60) as plain:
        plain.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        return plain.recv(100)


def test_what_a_client_sends_right_behind_its_handshake_is_not_lost(folder: Path) -> None:
    context = pair(folder, "echo").context()
    for _ in range(20):
        assert asyncio.run(_asked(context, lambda port: _over_tls(folder, port))) == b"hello"


def test_plain_http_gets_no_answer_on_a_port_with_tls(folder: Path) -> None:
    answered = asyncio.run(_asked(pair(folder, "plain").context(), _over_http))
    assert b"HTTP" not in answered


def test_a_client_that_never_begins_its_handshake_is_disconnected(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls, "HANDSHAKE_S", 0.1)

    def silent(port: int) -> bytes:
        with socket.create_connection(("127.0.0.1", port), timeout=60) as plain:
            return plain.recv(100)

    assert asyncio.run(_asked(pair(folder, "silent").context(), silent)) == b""


def test_connections_without_a_handshake_are_counted_for_each_address(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls, "MOST_OF_PEER", 2)

    def third(port: int) -> bytes:
        waiting = [socket.create_connection(("127.0.0.1", port), timeout=60) for _ in range(2)]
        try:
            return _over_http(port)
        except ConnectionResetError:
            return b"reset"
        finally:
            for one in waiting:
                one.close()

    assert asyncio.run(_asked(pair(folder, "many").context(), third)) in (b"", b"reset")
