"""The devcontainer: its image builds, and a container of it, brought up as an editor does, shows a lab's verdict."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest
from checkout import ROOT

from labctl.runtimes.images import build_environment

pytestmark = pytest.mark.night

CLI = os.environ.get("LABS_DEVCONTAINER_CLI") or shutil.which("devcontainer")
IMAGE, LABEL = "labs-test-devcontainer", "labs.test=devcontainer"
UP_S, RUN_S = 1500, 300  # of a machine with much other work


@pytest.fixture(scope="session", autouse=True)
def docker_is_here(engine: docker.DockerClient) -> None:
    """An engine, but none of the images that the other tests in this folder need."""


def run(*argv: str, timeout: float) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=timeout, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.fixture
def image() -> Iterator[str]:
    folder = ROOT / ".devcontainer"
    run("docker", "build", "--tag", IMAGE, "--file", str(folder / "Dockerfile"), str(folder), timeout=UP_S)
    yield IMAGE
    run("docker", "image", "rm", "--force", IMAGE, timeout=RUN_S)


def test_its_image_has_what_setup_asks_for_and_a_user_who_owns_the_cache(image: str) -> None:
    asks = (
        "id -un && test -w /labs-cache && scripts/find_python.sh && for p in git make curl sudo; do command -v $p; done"
    )
    checkout = f"type=bind,source={ROOT},target=/checkout,readonly"
    said = run(
        "docker",
        "run",
        "--rm",
        "--mount",
        checkout,
        "--workdir",
        "/checkout",
        image,
        "bash",
        "-euc",
        asks,
        timeout=RUN_S,
    )
    assert said.split()[:2] == ["labs", shutil.which("python3", path="/usr/bin") or "/usr/bin/python3"]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[list[str]]:
    """The CLI's options for a clone that it has prebuilt and then opened."""
    assert CLI
    clone = tmp_path / "labs"
    run("git", "clone", "--quiet", str(ROOT), str(clone), timeout=RUN_S)
    for path in (ROOT / ".devcontainer").iterdir():  # as it is here, committed or not
        shutil.copy(path, clone / ".devcontainer")
    if os.getuid() == 0:  # else the CLI gives the container's user the number of this one
        run("chown", "-R", "1000:1000", str(tmp_path), timeout=RUN_S)
        tmp_path.parent.chmod(0o755)
    options = ["--workspace-folder", str(clone), "--id-label", LABEL]
    pip = build_environment()
    given = {
        "PIP_CERT": (pip.get("LABS_CA_BUNDLE"), "/opt/ca.crt"),
        "PIP_FIND_LINKS": (pip.get("LABS_WHEELS"), "/opt/wheels"),
    }
    for name, (here, there) in given.items():
        if here:
            options += ["--mount", f"type=bind,source={Path(here).resolve()},target={there}"]
            options += ["--remote-env", f"{name}={there}"]
    try:
        run(CLI, "up", *options, "--prebuild", timeout=UP_S)
        run(CLI, "up", *options, "--skip-post-attach", timeout=RUN_S)
        yield options[:4]
    finally:
        containers = run("docker", "ps", "--all", "--quiet", "--filter", f"label={LABEL}", timeout=RUN_S).split()
        ask = ("docker", "inspect", "--format", "{{.Config.Image}}")
        images = {run(*ask, container, timeout=RUN_S).strip() for container in containers}
        for container in containers:
            run("docker", "rm", "--force", container, timeout=RUN_S)
        for left in images:  # the second is the first's base, without the number of this user
            run("docker", "image", "rm", "--force", left, left.removesuffix("-uid"), timeout=RUN_S)
        run("docker", "volume", "rm", "--force", "triton-labs-cache", timeout=RUN_S)


@pytest.mark.skipif(not CLI, reason="no devcontainer CLI (npm install @devcontainers/cli, or LABS_DEVCONTAINER_CLI)")
def test_an_opened_devcontainer_runs_a_lab_to_its_verdict(opened: list[str]) -> None:
    assert CLI
    said = run(CLI, "exec", *opened, ".venv/bin/labctl", "run", "iterative", "--quick", timeout=RUN_S)
    assert re.search("^(met|busy|NOT MET) +iterative: the two requests overlapped", said, re.MULTILINE)
