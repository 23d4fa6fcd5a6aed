"""A proxy in the environment: never asked for loopback; for other hosts asked, or left out, as curl does."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from grpc_here import grpc_serving
from hypothesis import given, settings
from hypothesis import strategies as st
from lab_errors import lab_error
from tritonclient.utils import InferenceServerException

from labkit import proxies
from labkit.client.ask import connect
from labkit.client.text_model import TextModel

NAMES = [f"{kind}_proxy" for kind in ("http", "https", "grpc", "all", "no", "no_grpc")]
DEAD = "http://127.0.0.1:9"  # nothing listens there
HOSTS = ["example.invalid", "sub.example.invalid", "notexample.invalid", "10.1.2.3"]
LISTED = st.lists(st.sampled_from(["localhost", *HOSTS, ".example.invalid", "invalid", "10.1.2.3:80", "x"]), max_size=3)


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture(scope="module")
def grpc_port() -> Iterator[int]:
    """Of a server that knows no call: it answers each as unimplemented."""
    with grpc_serving() as endpoint:
        yield int(endpoint.rpartition(":")[2])


class Proxy(BaseHTTPRequestHandler):
    """Answers whatever it is asked for with the host that was asked for."""

    def do_GET(self) -> None:
        host = self.path.removeprefix("http://").partition("/")[0].encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(host)))
        self.end_headers()
        self.wfile.write(host)

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture(scope="module")
def proxy() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


@settings(max_examples=30)
@given(
    spelled=st.sampled_from(
        "127.0.0.1:{0} localhost:{0} LocalHost:{0} 0.0.0.0:{0} [::ffff:127.0.0.1]:{0} ipv4:127.0.0.1:{0} "
        "ipv4:127.0.0.1:{0},127.0.0.1:{0} dns:///localhost:{0} dns:///127.0.0.1:{0}".split()
    ),
    used=st.sets(st.sampled_from(["http_proxy", "https_proxy", "grpc_proxy"]), min_size=1),
    listed=st.one_of(st.none(), LISTED.map(",".join), st.just("*")),
    into=st.sampled_from(["no_proxy", "NO_PROXY", "no_grpc_proxy"]),
)
def test_a_grpc_client_asks_loopback_itself(
    grpc_port: int, spelled: str, used: set[str], listed: str | None, into: str
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for name in used:
            patch.setenv(name, DEAD)
        if listed is not None:
            patch.setenv(into, listed)
        with connect(spelled.format(grpc_port)) as client, pytest.raises(InferenceServerException) as said:
            client.is_server_live(client_timeout=60)
        assert said.value.status() == "StatusCode.UNIMPLEMENTED"


# A client of somebody else's: a learner's, locust's, gradio's, the docker SDK's.
ASK = """
import sys, urllib.request
import grpc, httpx, requests
from labkit.proxies import spare_loopback
spare_loopback()
port, http = sys.argv[1:]
for host in "127.0.0.1", "localhost":
    assert urllib.request.urlopen(f"http://{host}:{http}/").status == 200
    assert httpx.get(f"http://{host}:{http}/").status_code == 200
    assert requests.get(f"http://{host}:{http}/").status_code == 200
    with grpc.insecure_channel(f"{host}:{port}") as channel:
        try:
            channel.unary_unary("/a/b")(b"", timeout=60)
        except grpc.RpcError as error:
            assert error.code() is grpc.StatusCode.UNIMPLEMENTED, error
"""


@pytest.mark.parametrize("listed", [{}, {"no_proxy": "corp"}, {"NO_PROXY": "corp .x"}, {"no_proxy": "*"}])
def test_other_libraries_of_our_processes_ask_loopback_themselves_too(
    grpc_port: int, proxy: str, listed: dict[str, str]
) -> None:
    env = {**os.environ, "http_proxy": DEAD, "HTTPS_PROXY": DEAD, **listed}
    argv = [sys.executable, "-c", ASK, str(grpc_port), proxy.rpartition(":")[2]]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(not shutil.which("curl"), reason="no curl to compare with")
@settings(max_examples=25)
@given(host=st.sampled_from(HOSTS), listed=st.one_of(LISTED, st.just(["*"])), upper=st.booleans())
def test_another_host_is_asked_through_the_proxy_when_curl_would(
    proxy: str, host: str, listed: list[str], upper: bool
) -> None:
    """Before our process changes the lists, and with the lists as it changed them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("http_proxy", proxy)
        patch.setenv("NO_PROXY" if upper else "no_proxy", ",".join(listed))
        before = curled(host)
        changed = dict(os.environ)
        proxies.spare_loopback(changed)
        assert curled(host, changed) == before
        if not any(":" in one for one in listed):  # an entry with a port is gRPC's own affair
            assert bool(proxies.for_grpc(f"{host}:80")) == before


def curled(host: str, env: dict[str, str] | None = None) -> bool:
    """Whether curl asks the proxy for that host."""
    argv = ["curl", "-s", "--max-time", "5", "--connect-timeout", "0.2", f"http://{host}/"]
    return subprocess.run(argv, env=env, capture_output=True, text=True, check=False).stdout == host


def test_without_a_proxy_the_environment_stays_as_it_is() -> None:
    env = {"PATH": "/bin", "no_proxy": "corp"}
    proxies.spare_loopback(env)
    assert env == {"PATH": "/bin", "no_proxy": "corp"}


def test_a_proxy_that_refuses_is_named_and_not_taken_for_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", DEAD)
    with lab_error("server-silent", "http_proxy") as refused:
        TextModel.of("triton.invalid:8001", "m")
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))
        with lab_error("server-silent") as refused:
            TextModel.of(f"127.0.0.1:{unheard.getsockname()[1]}", "m")
    assert "proxy" not in refused.value.why
