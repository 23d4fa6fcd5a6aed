"""Weights and engines of a stack on Kubernetes: shell scripts for the Job that makes them on a volume."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from labctl.plan import Plan, Step
from labctl.runtimes.compose import ComposeRuntime
from labctl.stack.up import engine_commands
from labctl.workspace import Workspace


def steps_to_prepare(workspace: Workspace, plan: Plan) -> list[Step]:
    """The weights and engines that are made; shipped models come with the checkout's files."""
    return [step for step in plan.steps if not step.path.is_relative_to(workspace.models)]


def scripts(workspace: Workspace, plan: Plan, steps: Sequence[Step]) -> dict[str, str]:
    """The scripts of the Job, which makes weights and then engines, and the one by which servers wait; by file name."""
    runtime = ComposeRuntime(workspace)
    weights = [line for step in steps if not step.image_build for line in _weights_lines(runtime, step)]
    engines = [line for step in steps if step.image_build for line in _engine_lines(workspace, plan, step)]
    made = " && ".join(f"[ -e {shlex.quote(runtime.server_path(step.path))} ]" for step in steps)
    found = {
        "weights.sh": weights,
        "engines.sh": engines or ["echo 'no engine of TensorRT-LLM to build'"],
        "wait.sh": [f"until {made}; do", "  sleep 2", "done"],
    }
    return {name: "\n".join(["set -eu", *lines, ""]) for name, lines in found.items()}


def _weights_lines(runtime: ComposeRuntime, step: Step) -> Iterator[str]:
    """A step in labctl's own Python, which finds done what was done before."""
    yield f"# {step.title}"
    yield shlex.join(["python3", *runtime.inside(step.argv, strict=True)])


def _engine_lines(workspace: Workspace, plan: Plan, step: Step) -> Iterator[str]:
    """The builder of TensorRT-LLM's image, which writes to a folder that gets its name when it is whole."""
    runtime = ComposeRuntime(workspace)
    unfinished, scratch = (step.path.with_name(f".{word}-{step.path.name}") for word in ("building", "checkpoint"))
    paths = (step.path, unfinished, scratch)
    done, building, checkpoint = (shlex.quote(runtime.server_path(path)) for path in paths)
    yield f"# {step.title}"
    yield f"if [ ! -e {done} ]; then"
    yield f"  rm -rf {building} {checkpoint}"
    for argv in engine_commands(step, workspace, unfinished):
        yield f"  {shlex.join(['env', *runtime.inside(argv)])}"
    yield f"  mv {building} {done}"
    yield f"  rm -rf {checkpoint}"
    yield "fi"
