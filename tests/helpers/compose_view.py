"""What Compose itself makes of our files: the docker command with its plugin, which asks no engine for that."""

from __future__ import annotations

import functools
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from labctl.catalog import load_catalog
from labctl.listener import Silent
from labctl.options import Options
from labctl.runtimes.compose import ComposeRuntime
from labctl.runtimes.record import Record
from labctl.stack.ports import free_endpoints
from labctl.stack.session import Session
from labctl.stack.stack import PlannedStack, record_of
from labctl.workspace import Workspace


@functools.cache
def _there() -> bool:
    try:
        return not subprocess.run(["docker", "compose", "version"], capture_output=True, check=False).returncode
    except FileNotFoundError:
        return False


def written(workspace: Workspace, word: str, options: Options) -> tuple[PlannedStack, Record]:
    """A stack whose files are written as ``labctl up --runtime compose`` does, at free ports."""
    session, runtime = Session(workspace, load_catalog(workspace), Silent()), ComposeRuntime(workspace)
    stack = PlannedStack(session, *session.catalog.stack(word), runtime, options)
    record = record_of(stack, free_endpoints(1)[0])
    runtime.write_files(stack.plan, record)
    return stack, record


def of_stack(env_file: Path) -> dict[str, Any]:
    """Every service of the project that an env file of ours names, whatever its profile."""
    return services([], compose_env_files=[env_file], compose_profiles=["*"])


def services(files: Sequence[Path], **options: Any) -> dict[str, Any]:
    """Every service of those files as it would be run."""
    return dict(document(files, **options)["services"])


def document(files: Sequence[Path], **options: Any) -> dict[str, Any]:
    """Those files as one, with every variable filled in. Without the command the test is skipped.

    Args:
        options: of python_on_whales' DockerClient.
    """
    if not os.environ.get("LABS_REQUIRE_DOCKER") and not _there():
        pytest.skip("needs the docker command with its compose plugin")
    from python_on_whales import DockerClient  # takes a quarter of a second

    found: dict[str, Any] = DockerClient(compose_files=list(files), **options).compose.config(return_json=True)
    return found
