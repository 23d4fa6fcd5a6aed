"""``labctl render --target kubernetes|swarm``: a stack for many machines, as files."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from labctl import repository, weights
from labctl.engines.tensorrt_llm_commands import commands
from labctl.errors import LabError
from labctl.guard.traced import receiver
from labctl.listener import Listener
from labctl.manifest.schema import PROFILES, Lab
from labctl.orchestrator.plan import Choices, Plan, Step, make_plan
from labctl.orchestrator.replicas import has_sequences
from labctl.orchestrator.session import Session
from labctl.orchestrator.todo import Todo
from labctl.orchestrator.up import launch_of
from labctl.runtimes import calls, images
from labctl.runtimes.actions import Action
from labctl.runtimes.base import Endpoints, Record
from labctl.runtimes.compose import ComposeRuntime
from labctl.runtimes.compose_projects import NOBODY, Projects
from labctl.runtimes.targets import composed, fronts, kustomize, swarm
from labctl.runtimes.targets.deployment import Deployment, Serving, Tool
from labctl.workspace import replace_dir

MARK = ".labctl-rendered.json"  # a folder with it is ours to replace
OWN_SETTINGS: Mapping[str, Mapping[str, bool]] = {"kubernetes": {"service_monitor": False}, "swarm": {}}
NEXT = {
    "kubernetes": "kubectl apply -k {folder}/overlays/cpu, or overlays/gpu (docs/kubernetes.md)",
    "swarm": "docker stack deploy --resolve-image never -c {folder}/compose.swarm.yaml {stack} (docs/swarm.md)",
}
LOCAL = Endpoints("127.0.0.1:8000", "127.0.0.1:8001", "127.0.0.1:8002")


@dataclass(frozen=True)
class Target:
    """What is rendered for, and with which settings of its own."""

    name: str
    settings: Mapping[str, bool]

    @classmethod
    def of(cls, name: str, choices: Choices) -> tuple[Target, Choices]:
        """The target, and the choices without its own settings. Raises LabError for a bad value of one."""
        own = OWN_SETTINGS[name]
        given = {key: choices.set[key] for key in own if key in choices.set}
        for key, value in given.items():
            if str(value).lower() not in ("true", "false"):
                raise LabError(f"{key} cannot be '{value}'", "it is true or false")
        chosen = {**own, **{key: str(value).lower() == "true" for key, value in given.items()}}
        return cls(name, chosen), replace(choices, set={k: v for k, v in choices.set.items() if k not in own})


def rendering(session: Session, lab: Lab, stack: str, choices: Choices, name: str, output: Path | None) -> Todo:
    """The files of a stack for that target.

    Raises:
        LabError: it cannot be rendered, or the folder is somebody else's.
    """
    target, choices = Target.of(name, choices)
    folder = output or session.workspace.stack_dir(stack) / name
    if folder.exists() and not (folder / MARK).is_file() and any(folder.iterdir()):
        raise LabError(f"{folder} is not empty", "labctl has not rendered what is in it", "name another --output")
    profiles = PROFILES if name == "kubernetes" else (choices.profile,)  # one file, for one kind of machine
    plans: dict[str, Plan] = {profile: plan_for(session, lab, stack, choices, profile) for profile in profiles}

    def do(listener: Listener) -> str:
        with tempfile.TemporaryDirectory() as scratch, replace_dir(folder) as fresh:
            if name == "kubernetes":
                deployment = _deployment(session, plans, Path(scratch))
                kustomize.write(deployment, fresh, target.settings["service_monitor"])
            else:
                _swarm(session, plans[choices.profile], Path(scratch) / "repository", fresh)
            told = {"stack": stack, "target": name, "settings": {p: dict(plans[p].settings) for p in plans}}
            (fresh / MARK).write_text(json.dumps(told, indent=1, default=str), encoding="utf-8")
        return f"{folder}: {NEXT[name].format(folder=folder, stack=stack)}"

    notices = [notice for plan in plans.values() for notice in plan.notices]
    return Todo("compose", choices.profile, notices, [Action(f"{stack} for {name}", do, files=[f"{folder}/"])])


def _swarm(session: Session, plan: Plan, scratch: Path, folder: Path) -> None:
    repository.render(replace(plan.request, output=scratch))
    image = images.guard_image(session.workspace)
    front = fronts.over_names(_policy(plan), ["triton"], receiver(str(plan.settings["trace"])))
    swarm.write(plan.name, service(session, plan), image, front, scratch, folder)


def _policy(plan: Plan) -> str:
    """How Envoy spreads requests."""
    return "hash" if has_sequences(plan) else "l7"


def plan_for(session: Session, lab: Lab, stack: str, choices: Choices, profile: str) -> Plan:
    """A profile's; TensorRT-LLM's releases and their templates are the gpu profile's alone."""
    mine = replace(choices, profile=profile)
    if profile == "cpu":
        mine = replace(mine, release="", templates=None)
    return make_plan(session.workspace, lab, stack, mine, session.runtime("compose").server_path)


def _deployment(session: Session, plans: Mapping[str, Plan], scratch: Path) -> Deployment:
    workspace, plan = session.workspace, plans["cpu"]
    return Deployment(
        stack=plan.name,
        policy=_policy(plan),
        trace=receiver(str(plan.settings["trace"])),
        envoy=images.guard_image(workspace),
        files=images.files_image(workspace),
        tools=images.server_image(workspace, calls.TOOLS),
        serving={profile: _serving(session, each, scratch / profile) for profile, each in plans.items()},
    )


def _serving(session: Session, plan: Plan, folder: Path) -> Serving:
    runtime = ComposeRuntime(session.workspace)
    common: dict[str, Any] = {
        "service": service(session, plan),
        "probes": {f"/v2/models/{model}/{probe.path}": probe.body for model, probe in plan.stack.probes.items()},
        "tools": [tool for step in plan.steps if not step.path.is_relative_to(session.workspace.models)
                  for tool in _tools(session, runtime, plan, step)],
    }  # fmt: skip
    if plan.fetched is not None and not plan.fetched.is_dir():
        chosen = [word for key, value in plan.stack_settings.items() for word in ("--set", f"{key}={value}")]
        fill = ["python3", "-m", "labctl", "render", plan.name, "--profile", plan.profile, *chosen,
                "--release", plan.release.name if plan.release else "", "--templates", "/templates",
                "--output", "/tmp/rendered"]  # fmt: skip
        return Serving(**common, templates=plan.templates, fill=fill)
    repository.render(replace(plan.request, output=folder))
    return Serving(**common, repository=folder)


def service(session: Session, plan: Plan) -> dict[str, Any]:
    """The server's Compose service, as ``labctl up --runtime compose`` would run it for nobody in particular."""
    env, own = launched(session, plan)
    files = Projects(session.workspace).compose_files(plan.profile)
    found = composed.services(files, env, session.workspace.root)["triton"]
    return {**found, **own, "environment": {**found["environment"], **own["environment"]}}


def launched(session: Session, plan: Plan) -> tuple[Mapping[str, str], dict[str, Any]]:
    """Compose's variables for a stack, and what only its own override says of the server."""
    record = Record(stack=plan.name, lab=plan.lab.folder, runtime="compose", profile=plan.profile,
                    settings=plan.settings, models=plan.stack.models, endpoints=LOCAL)  # fmt: skip
    launch, projects = launch_of(session.workspace, plan, record), Projects(session.workspace)
    own = calls.services(projects, launch)["triton"]
    del own["labels"]
    return {**calls.serve(projects, launch).env, "LABS_SERVER_USER": f"{NOBODY}:{NOBODY}"}, own


def _tools(session: Session, runtime: ComposeRuntime, plan: Plan, step: Step) -> list[Tool]:
    """What makes an artifact, command by command, as Compose's engine-builder would."""
    workspace, made = session.workspace, runtime.server_path(step.path)
    if build := step.image_build:
        temporary = step.path.with_name(f".checkpoint-{step.path.name}")
        source = weights.locate(build.source, workspace)
        asked: Sequence[Any] = [runtime.in_image(step.title, argv, plan.image, plan.ranks) for argv in
                                commands(build.options, source, temporary, step.path, build.source)]  # fmt: skip
        program, gpus = "env", plan.ranks
    else:
        asked, program, gpus = [runtime.tool(step.title, step.argv)], "python3", 0
    found = []
    for command in (one for action in asked for one in action.commands):
        words = list(command.argv)
        arguments = words[words.index("engine-builder") + 1 :]
        found.append(Tool(command.env["LABS_SERVER_IMAGE"], [program, *arguments], made, gpus))
    return found
