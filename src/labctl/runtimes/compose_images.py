"""The images of a start, as actions: pulled or built where the engine has none of that name."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from labctl.listener import Listener
from labctl.runtimes import calls, images, processes
from labctl.runtimes.actions import Action, Command
from labctl.runtimes.compose_projects import Projects
from labkit.errors import LabError

PULL_MINUTES, BUILD_MINUTES = 15, 4  # of one image, on an everyday connection


def missing(projects: Projects, profile: str, base: str, guarded: bool) -> list[Action[str]]:
    """What makes every image that is not there yet."""
    return build(calls.builds(projects, profile, base, guarded), base)


def build(builds: Mapping[str, Command], base: str) -> list[Action[str]]:
    """What builds those of ``builds`` that are not there yet, on the image ``base`` ("" is none of NVIDIA's)."""
    made = [_build(name, command) for name, command in builds.items() if not _there(name)]
    if base and not _there(base):  # also its digest is wanted, which a build alone would not keep
        made.insert(0, _pull(base))
    return made


def _pull(image: str) -> Action[str]:
    command = calls.pull(image)

    def do(listener: Listener) -> str:
        run(command, listener, f"image {image} cannot be pulled")
        return "pulled"

    return Action(f"image {image} (many gigabytes)", do, [command], minutes=PULL_MINUTES)


def push(image: str, registry: str) -> Action[str]:
    """Give an image to a registry, under its own name and tag."""
    there = f"{registry}/{image}"
    commands = calls.push(image, there)

    def do(listener: Listener) -> str:
        for command in commands:
            run(command, listener, f"image {there} cannot be pushed")
        return f"pushed to {registry}"

    return Action(f"image {image}", do, commands, minutes=PULL_MINUTES)


def _build(name: str, command: Command) -> Action[str]:
    def do(listener: Listener) -> str:
        if _there(name):  # another command built it meanwhile; a second build would take the name from that one
            return "there"
        # Compose 2.26 tells of a build on stdout
        code, _, tail = processes.run_tool(command, listener, listener.progress, merged=True)
        if code or not images.exists(name):
            raise LabError(
                f"image {name} cannot be built", processes.describe_exit(code),
                "the last lines show why; behind a proxy set LABS_CA_BUNDLE, without a package index LABS_WHEELS",
                details=tail,
            )  # fmt: skip
        return "built"

    return Action(f"image {name}", do, [command], minutes=BUILD_MINUTES)


def run(command: Command, listener: Listener, failed: str) -> str:
    """A command's stdout. Raises LabError, with ``failed`` and the last lines."""
    code, out, tail = processes.run_tool(command, listener, listener.progress)
    if code:
        raise LabError(failed, processes.describe_exit(code), "the last lines show why", details=tail)
    return out


def _there(image: str) -> bool:
    """Whether an image is here, as far as an engine can be asked."""
    with contextlib.suppress(LabError):
        return images.exists(image)
    return False
