"""Stacks rendered for many machines, once for all who look at them."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import yaml

from labctl.listener import Silent
from labctl.manifest.catalog import load
from labctl.orchestrator import targets
from labctl.orchestrator.plan import Choices
from labctl.orchestrator.session import Session
from labctl.runtimes.compose_projects import Projects
from labctl.workspace import Workspace

ROOT = Path(__file__).resolve().parents[1]
WORKSPACE = Workspace(ROOT, ROOT / ".no-cache")
STACKS = sorted(stack for lab in load(WORKSPACE).labs for stack in lab.stacks)
_scratch = tempfile.TemporaryDirectory(prefix="labs-rendered-")


def session() -> Session:
    return Session(WORKSPACE, load(WORKSPACE), Silent())


@functools.cache
def rendered(stack: str, target: str = "kubernetes", profile: str = "cpu", **settings: Any) -> Path:
    """The folder that ``labctl render STACK --target T`` writes."""
    opened = session()
    lab, name = opened.catalog.stack(stack)
    folder = Path(_scratch.name) / "-".join((target, stack, profile, *map(str, settings)))
    (action,) = targets.rendering(opened, lab, name, Choices(profile, settings), target, folder).actions
    action.do(Silent())
    return folder


@functools.cache
def built(stack: str, profile: str) -> list[dict[str, Any]]:
    """What ``kubectl kustomize`` makes of an overlay."""
    done = subprocess.run(
        ["kubectl", "kustomize", str(rendered(stack) / "overlays" / profile)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.load_all(done.stdout, yaml.CSafeLoader) if document]


@functools.cache
def composed(stack: str, profile: str) -> dict[str, Any]:
    """The server's service as Compose itself resolves it, for nobody in particular."""
    opened, projects = session(), Projects(WORKSPACE)
    lab, name = opened.catalog.stack(stack)
    plan = targets.plan_for(opened, lab, name, Choices(), profile)
    env, override = targets.launched(opened, plan)
    path = Path(_scratch.name) / f"{stack}-{profile}.json"
    path.write_text(json.dumps({"services": {"triton": override}}).replace("$", "$$"))
    files = [word for file in projects.compose_files(profile, path) for word in ("--file", str(file))]
    done = subprocess.run(
        ["docker", "compose", *files, "--project-directory", str(ROOT), "config", "--format", "json"],
        env={**os.environ, **env}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)["services"]["triton"]
    return found
