"""Weights and engines of a stack on Kubernetes: shell scripts for the Job that makes them on a volume."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from labctl.artifacts.engines import Build
from labctl.artifacts.store import Artifact
from labctl.plan import Plan
from labctl.runtimes.compose import ComposeRuntime
from labctl.stack.up import engine_commands
from labctl.workspace import Workspace


def made_by_job(workspace: Workspace, plan: Plan) -> list[Artifact]:
    """The weights and engines that are made; shipped models come with the checkout's files."""
    return [made for made in plan.artifacts if not made.locate(workspace).is_relative_to(workspace.models)]


def scripts(workspace: Workspace, plan: Plan, artifacts: Sequence[Artifact]) -> dict[str, str]:
    """The scripts of the Job, which makes weights and then engines, and the one by which servers wait; by file name."""
    runtime = ComposeRuntime(workspace)
    own = [artifact for artifact in artifacts if artifact not in plan.image_builds]
    weights = [line for artifact in own for line in _weights_lines(runtime, artifact)]
    engines = [line for build in plan.image_builds for line in _engine_lines(runtime, build)]
    paths = [runtime.server_path(artifact.locate(workspace)) for artifact in artifacts]
    made = " && ".join(f"[ -e {shlex.quote(path)} ]" for path in paths)
    files = {
        "weights.sh": weights,
        "engines.sh": engines or ["echo 'no engine of TensorRT-LLM to build'"],
        "wait.sh": [f"until {made}; do", "  sleep 2", "done"],
    }
    return {name: "\n".join(["set -eu", *lines, ""]) for name, lines in files.items()}


def _weights_lines(runtime: ComposeRuntime, artifact: Artifact) -> Iterator[str]:
    """Made in labctl's own Python, which finds done what was done before."""
    yield f"# {artifact.title}"
    yield shlex.join(["python3", *runtime.inside(artifact.argv, strict=True)])


def _engine_lines(runtime: ComposeRuntime, build: Build) -> Iterator[str]:
    """The builder of TensorRT-LLM's image, which writes to a folder that gets its name when it is whole."""
    path = build.locate(runtime.workspace)
    unfinished, scratch = (path.with_name(f".{word}-{path.name}") for word in ("building", "checkpoint"))
    done, building, checkpoint = (shlex.quote(runtime.server_path(place)) for place in (path, unfinished, scratch))
    yield f"# {build.title}"
    yield f"if [ ! -e {done} ]; then"
    yield f"  rm -rf {building} {checkpoint}"
    for argv in engine_commands(build, runtime.workspace, unfinished):
        yield f"  {shlex.join(['env', *runtime.inside(argv)])}"
    yield f"  mv {building} {done}"
    yield f"  rm -rf {checkpoint}"
    yield "fi"
