"""Stacks rendered for many machines, once for all who look at them."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from labctl.listener import Silent
from labctl.manifest.catalog import load
from labctl.runtimes.compose_commands import Projects
from labctl.runtimes.record import Choices
from labctl.stack import targets
from labctl.stack.session import Session
from labctl.workspace import Workspace

ROOT = Path(__file__).resolve().parents[1]
WORKSPACE = Workspace(ROOT, ROOT / ".no-cache")
ONLY_CPU = {"vllm-backend"}  # on the gpu profile NVIDIA's image has the backend itself
STACKS = sorted({stack for lab in load(WORKSPACE).labs for stack in lab.stacks} - ONLY_CPU)
_scratch = tempfile.TemporaryDirectory(prefix="labs-rendered-")


def session() -> Session:
    return Session(WORKSPACE, load(WORKSPACE), Silent())


@functools.cache
def rendered(stack: str, target: str = "kubernetes", profile: str = "cpu", **settings: Any) -> Path:
    """The folder that ``labctl render STACK --target T`` writes."""
    opened = session()
    lab, name = opened.catalog.stack(stack)
    chosen = [f"{key}={value}".replace("/", "_") for key, value in settings.items()]
    folder = Path(_scratch.name) / "-".join((target, stack, profile, *chosen))
    (action,) = targets.render_for_target(opened, lab, name, Choices(profile, settings), target, folder).actions
    action.do(Silent())
    return folder


@functools.cache
def built(stack: str, profile: str, **settings: Any) -> list[dict[str, Any]]:
    """What ``kubectl kustomize`` makes of an overlay."""
    return kustomized(rendered(stack, **settings) / "overlays" / profile)


def kustomized(folder: Path) -> list[dict[str, Any]]:
    """What ``kubectl kustomize`` makes of a folder."""
    done = subprocess.run(["kubectl", "kustomize", str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.load_all(done.stdout, yaml.CSafeLoader) if document]


def of_kind(documents: list[dict[str, Any]], *kinds: str) -> list[dict[str, Any]]:
    return [document for document in documents if document["kind"] in kinds]


def pods(documents: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The pods of all that starts any, by the names of what starts them."""
    for document in of_kind(documents, "Deployment", "StatefulSet", "Job"):
        yield document["metadata"]["name"], document["spec"]["template"]["spec"]


@functools.cache
def composed(stack: str, profile: str) -> dict[str, Any]:
    """The server's service as Compose itself resolves it, for nobody in particular."""
    opened, projects = session(), Projects(WORKSPACE)
    lab, name = opened.catalog.stack(stack)
    plan = targets.plan_for(opened, lab, name, Choices(), profile)
    env, override = targets.launch_values(opened, plan)
    path = Path(_scratch.name) / f"{stack}-{profile}.json"
    path.write_text(json.dumps({"services": {"triton": override}}).replace("$", "$$"))
    files = [word for file in projects.compose_files(profile, path) for word in ("--file", str(file))]
    done = subprocess.run(
        ["docker", "compose", *files, "--project-directory", str(ROOT), "config", "--format", "json"],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)["services"]["triton"]
    return found
