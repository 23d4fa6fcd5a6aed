"""One server on a bare model repository, for the time of a block: as a process, or in a container of any image.

Unlike a stack it has no record, no guard and no name: it is killed, not stopped, and what it left is removed. If
``labctl`` itself is killed, the kernel ends the process and its keeper removes the rest.
"""

from __future__ import annotations

import contextlib
import io
import os
import tarfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from labctl.runtimes import docker_engine, processes, wheel
from labctl.runtimes.leftovers import REPLICA, keeper_command, kill, marks, regions, shm_prefix
from labctl.runtimes.record import Endpoints
from labctl.triton.arguments import GRPC, HTTP, METRICS, server_arguments
from labctl.workspace import Workspace
from labkit import disk
from labkit.errors import LabError

EXIT_S = 1  # what Triton gives its requests if labctl is killed
GRACE_S = 5  # what Triton gets to end in then: if it hangs, it never ends by itself
END_S = 10.0  # what the kernel gets to end it
INSIDE = "/repository"  # in a container
NETWORK = "127.0.0.1"
OWNER = "labs.owner"  # label of a container: the pid of the command that started it


@dataclass(frozen=True)
class BareServer:
    """A server that is starting or up.

    Attributes:
        log: returns its log so far.
        ended: returns how it ended, "" while it runs.
    """

    endpoints: Endpoints
    log: Callable[[], str]
    ended: Callable[[], str]


def _add(extra: Sequence[str], arguments: list[str]) -> list[str]:
    """Triton's arguments with ``extra``. Models that this names are loaded in the place of all."""
    if any(argument.startswith("--load-model=") for argument in extra):
        arguments = [argument for argument in arguments if argument != "--load-model=*"]
    return [*arguments, *extra]


@contextlib.contextmanager
def local(
    workspace: Workspace, name: str, folder: Path, endpoints: Endpoints, extra: Sequence[str]
) -> Iterator[BareServer]:
    """Triton from its wheel on ``folder/repository``; log and notes are written into ``folder``.

    Args:
        name: of a folder in ``.labs``: what a killed command leaves is found by it, and goes with the next command.
    """
    triton = wheel.find_wheel()
    backends = triton.make_backends(workspace.backends_cache)
    http = endpoints.ports[0]
    prefix, log, ended = shm_prefix(workspace.root, name, http), folder / "server.log", folder / "ended.json"
    folders = {"backend": str(backends), "cache": str(triton.caches)}
    usual = server_arguments(str(folder / "repository"), NETWORK, endpoints.ports, prefix, EXIT_S, **folders)
    argv = keeper_command([str(triton.binary), *_add(extra, usual)], ended, prefix, "--grace", str(GRACE_S))
    env = wheel.environment(triton) | marks(workspace.root, name) | {REPLICA: str(http)}
    process = processes.spawn(argv, env, log, cwd=folder, outlive=False)

    def how() -> str:
        if process.poll() is None:
            return ""
        with contextlib.suppress(OSError, ValueError, KeyError):
            return str(disk.read_object(ended)["how"])
        return processes.describe_exit(process.returncode)

    try:
        yield BareServer(endpoints, lambda: log.read_text(encoding="utf-8", errors="replace"), how)
    finally:
        # The shared memory, the keeper, the stubs, their server: in this order no other command finds any of it.
        family = []
        with contextlib.suppress(psutil.Error):
            family = [psutil.Process(process.pid), *reversed(psutil.Process(process.pid).children(recursive=True))]
        for ending in (family, []):  # and what was made meanwhile
            for region in regions(workspace.root, name, http):
                region.unlink(missing_ok=True)
            kill(ending, time.monotonic() + END_S)
        process.wait()


@contextlib.contextmanager
def bare_container(
    workspace: Workspace, name: str, folder: Path, endpoints: Endpoints, extra: Sequence[str], image: str
) -> Iterator[BareServer]:
    """Triton in a container of ``image``, which is on this machine, with a copy of ``folder/repository``.

    Raises:
        LabError: no engine answers, or it does not have the image.
    """
    client = docker_engine.engine()
    errors = docker_engine.engine_errors()
    try:
        is_ours = client.images.get(image).attrs["Config"].get("Entrypoint") == ["serve"]  # of this project
    except errors as error:
        raise LabError(
            f"there is no image {image} on this machine", str(error), f"docker pull {image}", code="image-missing"
        ) from error
    # In a container it listens everywhere; its ports are published on loopback only.
    arguments = _add(extra, server_arguments(INSIDE, "0.0.0.0", (HTTP, GRPC, METRICS), "museum-", EXIT_S))
    ports = dict(zip((HTTP, GRPC, METRICS), endpoints.ports, strict=True))
    with docker_engine.engine_failures(f"starting {image}"):
        _sweep(workspace)
        container = client.containers.create(
            image,
            arguments if is_ours else ["tritonserver", *arguments],
            environment={"LABS_CLOSED": "trace"},
            ports={f"{inside}/tcp": (NETWORK, port) for inside, port in ports.items()},
            shm_size="256m",
            mem_limit="4g",
            labels={docker_engine.ROOT: str(workspace.root), OWNER: str(os.getpid())},
            name=f"{name}-{os.getpid()}-{ports[HTTP]}",
        )
    try:
        with docker_engine.engine_failures(f"starting {image}"):
            container.put_archive("/", _packed(folder / "repository"))
            container.start()

        def how() -> str:
            container.reload()
            return docker_engine.how_ended(container.attrs) or ""

        yield BareServer(endpoints, lambda: container.logs().decode(errors="replace"), how)
    finally:
        docker_engine.discard([container])


def _sweep(workspace: Workspace) -> None:
    """Remove the containers that a killed command left."""
    for container in docker_engine.containers(str(workspace.root)):
        owner = container.labels.get(OWNER)
        if owner and not psutil.pid_exists(int(owner)):
            docker_engine.discard([container])


def _packed(repository: Path) -> bytes:
    """The repository as an archive. Everybody may write there, because Python does, and a server may be nobody."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        archive.add(repository, INSIDE.strip("/"), filter=lambda entry: entry.replace(mode=0o777, uid=0, gid=0))
    return data.getvalue()
