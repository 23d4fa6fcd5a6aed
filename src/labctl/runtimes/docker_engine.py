"""The Docker engine, asked through its SDK. The labs' containers are found by their labels, never from a file."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import platform
import shutil
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labctl.options import LOOPBACK
from labctl.runtimes import processes
from labctl.runtimes.nvidia import numbers
from labctl.runtimes.record import Endpoints
from labctl.triton.arguments import GRPC, HTTP, METRICS
from labkit.disk import typed_path
from labkit.errors import LabError

if TYPE_CHECKING:
    import docker

PROBE_S = 3
DEFAULT_SOCKET = "unix:///var/run/docker.sock"
HOOK = "nvidia-container-runtime-hook"
ANSWER_S = 20
LOOK_S = 0.1  # seconds between two looks at a container
LONGEST = 300  # characters of an engine's own words that are repeated
ENGINE_NEEDED = (25, 0)  # compose.yaml uses start_interval, which came with this version
COMPOSE_NEEDED = (2, 24, 4)  # the first Compose that knows !override, which compose.json uses (compose_project.py)
ROOT, STACK, SERVICE = "labs.root", "labs.stack", "labs.service"
REPLICA = "labs.replica"
INSTALL_PACKAGES = "sudo scripts/docker_engine.sh install"
INSTALL = f"{INSTALL_PACKAGES} && sudo scripts/docker_engine.sh start (Debian, Ubuntu)"
START = "start it: sudo systemctl start docker, Docker Desktop, or sudo scripts/docker_engine.sh start"
JOIN = "sudo usermod -aG docker $USER, then log out and in again"
LOCAL = "--runtime local runs the same Triton as a process of this machine"
OUTSIDE = "ask outside of this container, or in it the server itself: labctl infer STACK --endpoint $TRITON_GRPC"


class _NoAddress(Exception):
    """What DOCKER_HOST or a context says is no address."""


def engine_errors() -> tuple[type[Exception], ...]:
    """The exceptions of the SDK. Importing it takes 140 ms, so only commands that ask the engine do."""
    import docker.errors
    import requests.exceptions

    return docker.errors.DockerException, requests.exceptions.RequestException, OSError


@functools.cache
def _client(host: str) -> docker.DockerClient | Exception:
    """A client whose engine has answered, or why there is none; asked once per process and address."""
    kind, _, path = host.partition("://")
    try:
        if kind == "unix":
            Path(path).stat()  # a machine without Docker does not wait for the SDK
    except OSError as error:
        return error
    import docker
    from docker.utils import parse_host

    try:
        parse_host(host)
    except (docker.errors.DockerException, ValueError) as error:  # ValueError: urllib's, of a port that is no number
        return _NoAddress(str(error))
    try:
        client = docker.DockerClient(base_url=host, version="auto", timeout=PROBE_S)
        client.api.timeout = ANSWER_S
        return client
    except engine_errors() as error:
        return error


def _address() -> str:
    """DOCKER_HOST, else the address of the docker command's own context."""
    if host := os.environ.get("DOCKER_HOST"):
        return host
    context = os.environ.get("DOCKER_CONTEXT", "")
    if context or typed_path("~/.docker/config.json").exists():
        return _of_context(context)
    return DEFAULT_SOCKET


@functools.cache
def _of_context(name: str) -> str:
    """The address of a context of the docker command ("" for its current one). Raises LabError where there is none."""
    from docker.context import ContextAPI
    from docker.context.config import get_current_context_name

    with contextlib.suppress(*engine_errors()):
        name = name or get_current_context_name()
        if name == "default":
            return DEFAULT_SOCKET
        if context := ContextAPI.get_context(name):
            return str(context.Host or DEFAULT_SOCKET)
    remedy = "docker context ls, then unset DOCKER_CONTEXT, or: docker context use default"
    raise LabError(f"there is no docker context '{name}'", "", remedy, code="docker-context-unknown")


def engine_address() -> str:
    """Where the engine is asked: ``unix://`` or ``tcp://`` and a place. Raises LabError: as of :func:`engine`."""
    host = _address()
    if host.startswith("ssh://"):
        why = "a stack's ports and folders are those of the machine that its engine runs on"
        raise LabError(
            f"the Docker engine at {host} is another machine's",
            why,
            "run labctl on that machine",
            code="docker-elsewhere",
        )
    return host


def engine() -> docker.DockerClient:
    """The engine.

    Raises:
        LabError: none answers within a few seconds, it refuses or cannot be used, or the address leads elsewhere.
    """
    address = engine_address()
    client = _client(address)
    if not isinstance(client, Exception):
        return client
    if isinstance(client, _NoAddress):
        what, remedy = f"'{address}' is no address of a Docker engine", "unset DOCKER_HOST, or write unix:///PATH"
        raise LabError(what, str(client), remedy, code="docker-address")
    cause = _cause(client)
    if isinstance(cause, TimeoutError):
        why: str | None = f"it did not answer within {PROBE_S} s"
    else:
        why = cause.strerror if isinstance(cause, OSError) else None  # what requests raises about an answer has none
    if why is None:
        what, why = "what answers is no Docker engine that labctl can ask", f"{_words(client)} ({address})"
        raise LabError(what, why, "docker version asks it the same; see also its log", code="docker-failed")
    why = f"{why} ({address})"
    if getattr(cause, "errno", None) in (errno.EACCES, errno.EPERM):
        remedy = _elsewhere(address) or JOIN
        raise LabError("this user may not ask the Docker engine", why, remedy, code="docker-denied")
    raise LabError("no Docker engine answers", why, _remedy(address), code="docker-missing")


def _elsewhere(address: str) -> str | None:
    """Say what to do about an address that a person has set; None for the usual one."""
    origin = "DOCKER_HOST" if os.environ.get("DOCKER_HOST") else "the docker context"
    return None if address == DEFAULT_SOCKET else f"correct or unset {origin}"


def _remedy(address: str) -> str:
    """What to do about an engine that does not answer."""
    if elsewhere := _elsewhere(address):
        return elsewhere
    if "LABS_INSIDE" in os.environ:  # compose.yaml sets it
        return OUTSIDE
    return START if shutil.which("dockerd") or shutil.which("docker") else INSTALL


def require_docker(instead: str = LOCAL) -> None:
    """Raises LabError where nothing can be started: no engine, one that the labs cannot use, or no plugin of Compose.

    The remedy names what does ``instead``, without Docker.
    """
    try:
        require_engine()
    except LabError as error:
        why = "; and ".join(filter(None, (error.why, _missing_plugin())))
        raise LabError(error.what, why, f"{error.remedy}; or {instead}", code=error.code) from None
    require_plugin(instead)


def require_engine() -> None:
    """Raises LabError for an engine on which ``compose.yaml`` does not start as it should."""
    client = engine()
    with engine_failures("saying what it is"):
        answer, options = client.version(), options_of(client.info())
    version = str(answer.get("Version", ""))
    if numbers(version) < ENGINE_NEEDED:
        needed = ".".join(map(str, ENGINE_NEEDED))
        why = f"compose.yaml needs {needed} or newer (start_interval)"
        remedy = f"install Docker {needed} or newer"
        raise LabError(f"the Docker engine {version} is too old", why, remedy, code="docker-too-old")
    if "userns" in options:
        why = "no user of a container is then one of this machine, and the server may not write where it has to"
        remedy = "start dockerd without userns-remap"
        raise LabError("the Docker engine maps users (userns-remap)", why, remedy, code="docker-maps-users")


def options_of(info: Mapping[str, Any]) -> set[str]:
    """The names of an engine's security options: "seccomp", "rootless", "userns"."""
    parts = (part for option in info.get("SecurityOptions") or () for part in str(option).split(","))
    return {part.removeprefix("name=") for part in parts if part.startswith("name=")}


def describe_engine() -> str:
    """The engine in a few words, for ``labctl doctor``. Raises LabError as :func:`engine`."""
    info = _info()
    rootless = ", rootless" if "rootless" in options_of(info) else ""
    return f"Docker engine {info['ServerVersion']}{rootless}"


def _info() -> dict[str, Any]:
    """The engine's information about itself (`docker info`). Raises LabError as :func:`engine`."""
    client = engine()
    with engine_failures("saying what it is"):
        return dict(client.info())


@functools.cache
def user_inside() -> str:
    """The ``user:group`` of a container whose files belong to the caller: 0:0 under a rootless engine."""
    with contextlib.suppress(LabError):
        if "rootless" in options_of(_info()):
            return "0:0"
    return f"{os.getuid()}:{os.getgid()}"


def data_root() -> tuple[str, int | None]:
    """Where the engine keeps images and containers, and how many bytes are free there; None where it is not here.

    Raises LabError as :func:`engine`.
    """
    info = _info()
    root = str(info.get("DockerRootDir", ""))
    with contextlib.suppress(OSError):
        if info.get("Name") == platform.node():  # else its disk is that of a virtual or another machine
            return root, shutil.disk_usage(root).free
    return root, None


def require_plugin(instead: str = LOCAL) -> None:
    """Raises LabError on a machine whose ``docker compose`` is missing or too old."""
    if missing := _missing_plugin():
        needed = ".".join(map(str, COMPOSE_NEEDED))
        remedy = f"{INSTALL_PACKAGES} (Debian, Ubuntu), or Docker's own docker-compose-plugin; or {instead}"
        raise LabError(missing, f"the labs need {needed} or newer", remedy, code="docker-plugin-missing")


def _missing_plugin() -> str | None:
    """Say what is wrong with the plugin; None if nothing is."""
    version = ""
    with contextlib.suppress(OSError):
        ended = processes.run_short(["docker", "compose", "version", "--short"], Path("/"), ANSWER_S)
        if ended is None:
            return f"docker compose did not answer within {ANSWER_S:g} s"
        if not ended.code:
            version = ended.out.strip().removeprefix("v")
    if not numbers(version):
        return "there is no docker compose plugin"
    return None if numbers(version) >= COMPOSE_NEEDED else f"Docker Compose {version} is too old"


def require_gpu() -> None:
    """Raises LabError for an engine that cannot hand a GPU to a container."""
    info = _info()
    if shutil.which(HOOK):  # on older hosts the hook hands GPUs to containers, and the engine lists no runtime for it
        return
    runtimes = info.get("Runtimes", {})
    if "nvidia" not in runtimes and not info.get("DiscoveredDevices"):
        raise LabError(
            "the Docker engine has no NVIDIA runtime",
            f"its runtimes are {', '.join(sorted(runtimes)) or 'unknown'}",
            "install the NVIDIA Container Toolkit and restart the engine, or use --profile cpu",
            code="nvidia-runtime-missing",
        )


@contextlib.contextmanager
def engine_failures(what: str) -> Iterator[None]:
    """Raise a LabError if the engine fails or dies during the block. ``what``: what the block asks it for."""
    try:
        yield
    except engine_errors() as error:
        raise LabError(
            f"the Docker engine failed while {what}",
            _words(error),
            "check that it is still running: docker info",
            code="docker-failed",
        ) from error


def containers(root: str, stack: str | None = None, service: str | None = None) -> list[Any]:
    """The labs' containers of one checkout, running or not."""
    return _labelled("containers", root, stack, service, all=True, ignore_removed=True)


def networks(root: str, stack: str | None = None) -> list[Any]:
    return _labelled("networks", root, stack)


def volumes(root: str, stack: str) -> list[Any]:
    return _labelled("volumes", root, stack)


def _labelled(kind: str, root: str, stack: str | None, service: str | None = None, **options: bool) -> list[Any]:
    values = {ROOT: root, STACK: stack, SERVICE: service}
    labels = [f"{key}={value}" for key, value in values.items() if value is not None]
    client = engine()
    with engine_failures(f"listing {kind}"):
        return list(getattr(client, kind).list(filters={"label": labels}, **options))


def of_service(containers: Sequence[Any], service: str) -> list[Any]:
    """The containers among these that belong to that service of compose.yaml."""
    return [container for container in containers if container.labels.get(SERVICE) == service]


def replica(container: Any) -> int:
    """The number of a server's container in its stack."""
    return int(container.labels.get(REPLICA) or 1)


def published(container: Any, endpoints: Endpoints) -> Endpoints:
    """The endpoints that a container publishes now; those of ``endpoints`` that it does not publish stay."""
    inner = {"http": HTTP, "grpc": GRPC, "metrics": METRICS}
    bindings = {name: container.ports.get(f"{port}/tcp") for name, port in inner.items()}
    places = {name: f"{LOOPBACK}:{found[0]['HostPort']}" for name, found in bindings.items() if found}
    return replace(endpoints, **places)


def labels(thing: Any) -> dict[str, str]:
    """The labels of a container or a network."""
    return dict(thing.attrs.get("Labels") or thing.attrs.get("Config", {}).get("Labels") or {})


def containers_on_network(network: Any) -> str:
    """The containers on a network, as an addition to its name; "" for none."""
    with contextlib.suppress(*engine_errors()):
        network.reload()
    names = sorted(entry["Name"] for entry in (network.attrs.get("Containers") or {}).values())
    return f" (in use by {', '.join(names)})" if names else ""


def remove_container(container: str) -> None:
    """Make sure that there is no container of that name, as far as the engine can be asked."""
    with contextlib.suppress(LabError, *engine_errors()):
        discard([engine().containers.get(container)])


def discard(things: Sequence[Any]) -> None:
    """Remove containers (by force), networks and volumes, each as far as the engine lets us."""
    from docker.models.containers import Container

    for thing in things:
        with contextlib.suppress(*engine_errors()):
            thing.remove(**({"force": True, "v": True} if isinstance(thing, Container) else {}))


@contextlib.contextmanager
def ended_container(
    image: str, words: Sequence[str], seconds: float, **options: Any
) -> Iterator[tuple[Any, int | None]]:
    """Run a command in a container of an image that is here, without a network; the container goes with the block.

    Args:
        seconds: that the command has.
        options: of the SDK's ``containers.create``.

    Yields:
        The container, and its command's exit status; None where it has not ended in time.
    """
    import requests.exceptions

    container = engine().containers.create(image, list(words), network_mode="none", **options)
    try:
        container.start()
        code = None
        with contextlib.suppress(requests.exceptions.RequestException):  # it takes longer
            code = int(container.wait(timeout=max(seconds, LOOK_S))["StatusCode"])
        yield container, code
    finally:
        discard([container])


def copy_folder(container: Any, path: str, target: Path) -> None:
    """Copy the files and folders in a folder of a container into ``target``, as the caller's; other kinds are left."""
    chunks, _ = container.get_archive(f"{path}/.")
    with tempfile.TemporaryFile() as archive:
        archive.writelines(chunks)
        archive.seek(0)
        with tarfile.open(fileobj=archive) as files:
            files.extraction_filter = lambda member, _: member  # Python 3.12 warns of none; ours is below
            files.extractall(target, [_owned(member) for member in files if _is_plain(member)])


def _is_plain(member: tarfile.TarInfo) -> bool:
    """Whether it is a file or folder within the archive's own (tarfile's filters came with Python 3.11.4)."""
    place = Path(member.name)
    return (member.isreg() or member.isdir()) and not place.is_absolute() and ".." not in place.parts


def _owned(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """The member as a file of the caller's, which others may not write."""
    member.uid, member.gid, member.uname, member.gname = os.getuid(), os.getgid(), "", ""
    member.mode &= 0o755
    return member


def running_containers(containers: Sequence[Any]) -> list[Any]:
    """The containers that still run."""
    for container in containers:
        container.reload()
    return [container for container in containers if container.status in ("running", "paused")]


def largest_process_bytes(container: Any) -> int:
    """Bytes of memory that its largest process has; 0 where it does not run. Raises LabError without an engine."""
    if container.status != "running":
        return 0
    with engine_failures("asking for a container's processes"):
        table = container.top(ps_args="-eo pid,rss")  # rss is in KiB; the engine refuses a table without pid
    return 1024 * max((int(row[1]) for row in table["Processes"] or ()), default=0)


def how_ended(attributes: dict[str, Any]) -> str | None:
    """How a container ended (or a process of it, for memory), or why it never will serve; None while it may."""
    state = attributes["State"]
    status = state.get("Status")
    health = state.get("Health") or {}
    if state.get("OOMKilled"):
        return "OOM-killed: it needed more memory than the container or the machine has"
    if status == "running" and health.get("Status") == "unhealthy":
        outputs = [entry.get("Output", "").strip() for entry in health.get("Log") or ()]
        last_lines = outputs[-1].splitlines() if outputs else []
        return f"unhealthy: {last_lines[-1] if last_lines else 'its health check fails'}"
    if status in ("created", "running", "paused"):
        return None
    if state.get("Error"):
        return str(state["Error"])
    code = int(state.get("ExitCode", 0))
    return processes.describe_exit(128 - code if code > 128 else code)


def _cause(error: BaseException) -> BaseException:
    """The reason at the bottom of an error's causes: "Connection refused"."""
    while inner := error.__cause__ or error.__context__:
        error = inner
    return error


def _words(error: BaseException) -> str:
    """The engine's own words in an error of the SDK's; else the innermost sentence of its nested messages."""
    if explanation := getattr(error, "explanation", None):  # docker.errors.APIError
        return str(explanation).strip()[:LONGEST]
    lines = str(error).rpartition("Error while fetching server API version: ")[2].strip().splitlines()
    return lines[0][:LONGEST] if lines else "it gives no reason"
