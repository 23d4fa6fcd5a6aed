"""The Docker engine, asked through its SDK: does it answer, and what of ours is on it?

Everything is found by our own labels, never from a file: what the engine says is the truth.
"""

from __future__ import annotations

import contextlib
import functools
import http.client
import json
import os
import shutil
import socket
import subprocess
import urllib.parse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labctl.errors import LabError
from labctl.runtimes import processes

if TYPE_CHECKING:
    import docker

PROBE_S = 3
DEFAULT_SOCKET = "unix:///var/run/docker.sock"
HOOK = "nvidia-container-runtime-hook"
ANSWER_S = 20
COMPOSE_NEEDED = (2, 20)
ROOT, STACK, SERVICE, RECORD = "labs.root", "labs.stack", "labs.service", "labs.record"
REPLICA = "labs.replica"
LOCAL = "--runtime local runs the same Triton as a process of this machine"


def engine_errors() -> tuple[type[Exception], ...]:
    """What the SDK raises. It is imported only here and where it is used: most commands need none of its 140 ms."""
    import docker.errors
    import requests.exceptions

    return docker.errors.DockerException, requests.exceptions.RequestException, OSError


@functools.cache
def _connect(host: str) -> docker.DockerClient | str:
    """A client whose engine has answered, or why there is none; asked once per process and address."""
    with contextlib.suppress(_Elsewhere):
        try:
            _socket(host).close()
        except OSError as error:
            return str(error)
    import docker

    try:
        client = docker.DockerClient(base_url=host or None, version="auto", timeout=PROBE_S)
        client.api.timeout = ANSWER_S
        return client
    except engine_errors() as error:
        return str(error)


class _Elsewhere(Exception):
    """The engine is not behind a socket of this machine."""


def _socket(host: str) -> socket.socket:
    """A connection to the engine's socket. Raises OSError where nobody listens, _Elsewhere where there is none."""
    kind, _, path = (host or DEFAULT_SOCKET).partition("://")
    if kind != "unix":
        raise _Elsewhere
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(PROBE_S)
    try:
        connection.connect(path)
    except OSError:
        connection.close()
        raise
    return connection


def _nothing(kind: str, labels: Sequence[str]) -> bool:
    """Whether the engine says at once that it has no such thing: the usual answer, and without the SDK."""
    wanted = urllib.parse.urlencode({"all": 1, "filters": json.dumps({"label": labels})})
    with contextlib.suppress(_Elsewhere, OSError, http.client.HTTPException, ValueError):
        connection = http.client.HTTPConnection("localhost")
        connection.sock = _socket(_address())
        with contextlib.closing(connection):
            connection.request("GET", f"/{kind}?{wanted}")
            response = connection.getresponse()
            return response.status == 200 and json.loads(response.read()) == []
    return False


def _address() -> str:
    """DOCKER_HOST, else the address of the docker command's own context ("" for the default socket)."""
    if host := os.environ.get("DOCKER_HOST"):
        return host
    if not os.environ.get("DOCKER_CONTEXT") and not Path("~/.docker/config.json").expanduser().exists():
        return ""
    return _of_context(os.environ.get("DOCKER_CONTEXT", ""))


@functools.cache
def _of_context(name: str) -> str:
    """The address of a context of the docker command ("" for its current one)."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        done = processes.ask(["docker", "context", "inspect", "--format", "{{.Endpoints.docker.Host}}"], PROBE_S)
        if done.returncode == 0:
            return done.stdout.strip()
    return ""


def engine() -> docker.DockerClient:
    """The engine.

    Raises:
        LabError: none answers within a few seconds.
    """
    host = _address()
    client = _connect(host)
    if isinstance(client, str):
        remedy = f"correct DOCKER_HOST (it is {host}) or unset it" if host else "start the engine"
        raise LabError("no Docker engine answers", _plain(client), f"{remedy}, or {LOCAL}")
    return client


def require_compose() -> None:
    """Refuse a machine whose ``docker compose`` is missing or too old.

    Raises:
        LabError
    """
    needed = ".".join(map(str, COMPOSE_NEEDED))
    try:
        done = processes.ask(["docker", "compose", "version", "--short"], PROBE_S)
        version = done.stdout.strip().removeprefix("v") if done.returncode == 0 else ""
    except (OSError, subprocess.TimeoutExpired):
        version = ""
    try:
        numbers = tuple(int(part) for part in version.split(".")[:2])
    except ValueError:
        numbers = ()
    if numbers < COMPOSE_NEEDED:
        raise LabError(
            f"Docker Compose {version} is too old" if numbers else "there is no docker compose",
            f"the labs need {needed} or newer",
            f"install the docker-compose plugin {needed} or newer, or {LOCAL}",
        )


def require_gpu() -> None:
    """Refuse an engine that cannot hand a GPU to a container.

    Raises:
        LabError
    """
    info = engine().info()
    if shutil.which(HOOK):  # older hosts: every container's start goes by it, and no runtime shows
        return
    if "nvidia" not in info.get("Runtimes", {}) and not info.get("DiscoveredDevices"):
        raise LabError(
            "the Docker engine has no NVIDIA runtime",
            f"its runtimes are {', '.join(sorted(info.get('Runtimes', {}))) or 'unknown'}",
            "install the NVIDIA Container Toolkit and restart the engine, or use --profile cpu",
        )


@contextlib.contextmanager
def speaking(what: str) -> Iterator[None]:
    """Turn an engine that fails or dies in mid-sentence into a LabError."""
    try:
        yield
    except engine_errors() as error:
        raise LabError(
            f"the Docker engine failed while {what}", _plain(str(error)), "check that it is still running: docker info"
        ) from error


def containers(root: str, stack: str | None = None, service: str | None = None) -> list[Any]:
    """Our containers of one checkout, running or not."""
    labels = _filter(root, stack, service)
    if _nothing("containers/json", labels):
        return []
    client = engine()
    with speaking("listing containers"):
        return list(client.containers.list(all=True, filters={"label": labels}))


def replica(container: Any) -> int:
    """The number of a server's container in its stack."""
    return int(container.labels.get(REPLICA) or 1)


def networks(root: str, stack: str | None = None) -> list[Any]:
    labels = _filter(root, stack)
    if _nothing("networks", labels):
        return []
    client = engine()
    with speaking("listing networks"):
        return list(client.networks.list(filters={"label": labels}))


def volumes(root: str, stack: str | None = None) -> list[Any]:
    client = engine()
    with speaking("listing volumes"):
        return list(client.volumes.list(filters={"label": _filter(root, stack)}))


def _filter(root: str, stack: str | None, service: str | None = None) -> list[str]:
    wanted = {ROOT: root, STACK: stack, SERVICE: service}
    return [f"{key}={value}" for key, value in wanted.items() if value is not None]


def labels(thing: Any) -> dict[str, str]:
    """The labels of a container or a network."""
    return dict(thing.attrs.get("Labels") or thing.attrs.get("Config", {}).get("Labels") or {})


def users(network: Any) -> str:
    """Who still uses a network, as an addition to its name; "" if nobody does."""
    with contextlib.suppress(*engine_errors()):
        network.reload()
    names = sorted(entry["Name"] for entry in (network.attrs.get("Containers") or {}).values())
    return f" (in use by {', '.join(names)})" if names else ""


def remove(container: str) -> None:
    """Make sure that there is no container of that name, as far as the engine can be asked."""
    with contextlib.suppress(LabError, *engine_errors()):
        discard([engine().containers.get(container)])


def discard(things: Sequence[Any]) -> None:
    """Remove containers (by force), networks and volumes, each as far as the engine lets us."""
    from docker.models.containers import Container

    for thing in things:
        with contextlib.suppress(*engine_errors()):
            thing.remove(**({"force": True, "v": True} if isinstance(thing, Container) else {}))


def living(containers: Sequence[Any]) -> list[Any]:
    """Those that still run."""
    for container in containers:
        container.reload()
    return [container for container in containers if container.status in ("running", "paused")]


def largest(container: Any) -> int:
    """Bytes of memory that its largest process has; 0 where it does not run. Raises LabError without an engine."""
    if container.status != "running":
        return 0
    with speaking("asking for a container's processes"):
        shown = container.top(ps_args="-eo pid,rss")  # in KiB, and without a pid the engine refuses
    return 1024 * max((int(row[1]) for row in shown["Processes"] or ()), default=0)


def kill(container: Any) -> None:
    """End it at once. Raises LabError without an engine."""
    with speaking("ending a container"):
        container.kill()


def how_ended(attributes: dict[str, Any]) -> str | None:
    """How a container ended, or why it never will serve, in words, from its inspected attributes; None while it may.

    A process of it that the kernel killed for memory counts, although the container itself may run on; so does a
    container that has been started anew after an end.
    """
    state = attributes["State"]
    status = state.get("Status")
    health = state.get("Health") or {}
    if state.get("OOMKilled"):
        return "OOM-killed: it needed more memory than the container or the machine has"
    if status == "running" and health.get("Status") == "unhealthy":
        said = [entry.get("Output", "").strip() for entry in health.get("Log") or ()]
        return f"unhealthy: {said[-1].splitlines()[-1] if said and said[-1] else 'its health check fails'}"
    if status == "restarting" or attributes.get("RestartCount"):
        return f"it ends again and again (crash loop, last time with exit status {state.get('ExitCode', 0)})"
    if status in ("created", "running", "paused"):
        return None
    if state.get("Error"):
        return str(state["Error"])
    code = int(state.get("ExitCode", 0))
    return processes.describe_exit(128 - code if code > 128 else code)


def _plain(text: str) -> str:
    """The innermost sentence of the SDK's nested messages."""
    return text.rpartition("Error while fetching server API version: ")[2].strip().splitlines()[0][:200]
