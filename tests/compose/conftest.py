"""A Docker engine, the images, and checkouts of the tests' own: a person's stacks are not touched."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from checkout import ROOT
from machinery import copy_of_the_checkout, labctl, names_left, status, taken_down, with_faults_lab

from labctl.runtimes import images
from labctl.stack.ports import claim_endpoints
from labctl.workspace import Workspace


@pytest.fixture(scope="session", autouse=True)
def docker_is_here(images: None) -> None:
    """Every test in this folder needs both."""


@pytest.fixture
def own(tmp_path: Path, snapshot: Path) -> Iterator[Path]:
    """A checkout for one test with the lab of faults in it; when it ends, nothing of it may be left."""
    root = with_faults_lab(copy_of_the_checkout(tmp_path / "own", snapshot))
    try:
        yield root
    finally:
        if names_left(root):
            taken_down(root)
        assert names_left(root) == set()


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory, snapshot: Path) -> Iterator[Path]:
    """A checkout whose stacks several tests look at; nothing of it may be left in the end."""
    root = with_faults_lab(copy_of_the_checkout(tmp_path_factory.mktemp("shared") / "checkout", snapshot))
    try:
        yield root
    finally:
        labctl("down", "--all", root=root)
        assert names_left(root) == set()


@pytest.fixture(scope="session")
def in_containers(shared: Path) -> Callable[..., dict[str, Any]]:
    """``in_containers("codegen", model="...")``: that stack up in containers, once for all who ask for the same.

    Returns ``labctl status --json``: endpoints, models, settings.
    """
    up: dict[str, dict[str, Any]] = {}

    def bring(stack: str, **settings: Any) -> dict[str, Any]:
        if up.get(stack) == settings:
            return status(shared, stack)
        if stack in up:
            labctl("down", stack, root=shared)
        chosen = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        labctl("up", stack, "--runtime", "compose", "--ports", "auto", *chosen, root=shared)
        up[stack] = settings
        return status(shared, stack)

    return bring


@pytest.fixture(scope="session")
def rendered(tmp_path_factory: pytest.TempPathFactory, snapshot: Path) -> Path:
    """A checkout with the stack ``iterative`` rendered, for ``docker compose`` by hand (``docker_services``)."""
    root = copy_of_the_checkout(tmp_path_factory.mktemp("by-hand") / "checkout", snapshot)
    labctl("render", "iterative", "--runtime", "compose", root=root)
    return root


@pytest.fixture(scope="session")
def docker_compose_file(rendered: Path) -> str:
    return str(rendered / "compose.yaml")


@pytest.fixture(scope="session")
def docker_setup(snapshot: Path, rendered: Path) -> str:
    """The plain command, once for all. Only the image that is there already and free ports are not left at defaults."""
    values = {"STACK_SERVER_IMAGE": images.server_image(Workspace(snapshot, ROOT), "cpu")}
    for name, endpoint in vars(claim_endpoints("auto")).items():
        values[f"STACK_{name.upper()}_PORT"] = endpoint.rpartition(":")[2]
    values["STACK_CHECKOUT"] = str(rendered)  # a shell's $PWD, which the test's command does not have
    # Where Compose looks by itself; the environment is that of every later test too.
    (rendered / ".env").write_text("".join(f"{name}={value}\n" for name, value in values.items()))
    return "up --wait"
