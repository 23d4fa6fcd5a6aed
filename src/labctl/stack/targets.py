"""``labctl render --target kubernetes|swarm``: a stack for many machines, as files."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import shlex
import tempfile
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from labctl import repository
from labctl.deploy import door, gateway, kustomize, swarm
from labctl.deploy.stack import Cluster, Deployment, Server, Serving, Tool
from labctl.listener import Listener
from labctl.manifest.schema import PROFILES, Lab
from labctl.plan import Plan, Step, make_plan
from labctl.runtimes import compose_commands, images
from labctl.runtimes.compose import ComposeRuntime
from labctl.runtimes.compose_commands import NOBODY, Projects
from labctl.runtimes.envoy import config
from labctl.runtimes.images import build, push
from labctl.runtimes.processes import Action
from labctl.runtimes.record import Choices, Endpoints, Record
from labctl.stack.session import Session, Todo
from labctl.stack.stack import has_sequences, launch_of
from labctl.stack.up import engine_actions
from labctl.triton.arguments import receiver
from labctl.unfinished import replace_dir
from labkit.errors import LabError

NAME = r"[A-Za-z0-9][-A-Za-z0-9_.]*|", "it is a name in the cluster: letters, digits, '-', '_' and '.'"
FORMS = {
    **dict.fromkeys(("guard", "openai"), (r"(?i)true|false", "it is true or false")),
    "cpu_request": (r"\d+(\.\d+)?|\d+m|", "it is a number of processors, such as 2 or 500m"),
    "registry": (r"[\w.:/-]*\w|", "it is a registry, such as registry.example.com/labs"),
    "keda": (r"https?://[^\s/]+\S*|", "it is the address of Prometheus, such as http://prometheus.monitoring:9090"),
}
MARK = ".labctl-rendered.json"  # a folder with it is ours to replace
OWN_SETTINGS = {"kubernetes": [field.name for field in fields(Cluster)], "swarm": ["guard", "openai", "registry"]}
NEXT = {
    "kubernetes": "kubectl apply -k {folder}/overlays/cpu, or overlays/gpu (docs/operate/kubernetes.md)",
    "swarm": "docker stack deploy --resolve-image never -c {folder}/compose.swarm.yaml {stack} (docs/operate/swarm.md)",
}
SHM = {"cpu": "256m", "gpu": "2g"}  # compose.yaml's and compose.gpu.yaml's
LOCAL = Endpoints("127.0.0.1:8000", "127.0.0.1:8001", "127.0.0.1:8002")


def cluster_of(name: str, choices: Choices) -> tuple[Cluster, Choices]:
    """What a target's settings say of the cluster, and the choices without them. Raises LabError for a bad value."""
    own = {key: str(choices.set[key]) for key in OWN_SETTINGS[name] if key in choices.set}
    for key, value in own.items():
        form, words = FORMS.get(key, NAME)
        if not re.fullmatch(form, value):
            raise LabError(f"{key} cannot be '{value}'", words)
    guard, openai = (own.pop(*flag).lower() == "true" for flag in (("guard", "true"), ("openai", "false")))
    rest = {key: value for key, value in choices.set.items() if key not in OWN_SETTINGS[name]}
    return Cluster(guard, openai, **own), replace(choices, set=rest)


def render_for_target(session: Session, lab: Lab, stack: str, choices: Choices, name: str, output: Path | None) -> Todo:
    """The files of a stack for that target.

    Raises LabError: it cannot be rendered, or the folder is somebody else's.
    """
    cluster, choices = cluster_of(name, choices)
    folder = output or session.workspace.folder(stack).path / name
    if folder.exists() and not (folder / MARK).is_file() and any(folder.iterdir()):
        raise LabError(f"{folder} is not empty", "labctl has not rendered what is in it", "name another --output")
    if name == "kubernetes":
        plans, notices = plans_for(session, lab, stack, choices)
    else:  # one file, for one kind of machine
        plans, notices = {choices.profile: plan_for(session, lab, stack, choices, choices.profile)}, []

    def do(listener: Listener) -> str:
        with tempfile.TemporaryDirectory() as scratch, replace_dir(folder) as fresh:
            if name == "kubernetes":
                deployment = _deployment(session, plans, cluster, Path(scratch))
                kustomize.write(deployment, fresh, session.workspace.observe)
                door.add(deployment, plans, session.workspace, fresh)
                gateway.add(deployment, plans, fresh)
            else:
                _swarm(session, plans[choices.profile], cluster, Path(scratch) / "repository", fresh)
                door.add_to_swarm(plans[choices.profile], cluster, session.workspace, fresh)
            told = {"stack": stack, "target": name, "settings": {p: dict(plans[p].settings) for p in plans}}
            (fresh / MARK).write_text(json.dumps(told, indent=1, default=str), encoding="utf-8")
        return f"{folder}: {NEXT[name].format(folder=folder, stack=stack)}"

    notices += [notice for plan in plans.values() for notice in plan.notices]
    return Todo("compose", choices.profile, notices, [Action(f"{stack} for {name}", do, files=[f"{folder}/"])])


def _swarm(session: Session, plan: Plan, cluster: Cluster, scratch: Path, folder: Path) -> None:
    repository.render(replace(plan.request, output=scratch))
    image, guard = cluster.image(images.client_image(session.workspace)), cluster.guard
    token = config.PLACEHOLDER if guard else ""
    front = config.over_names(_policy(plan), ["triton"], receiver(str(plan.settings["trace"])), token)
    mounts = {"models": session.workspace.models, "cache": session.workspace.cache}
    swarm.write(plan.name, server(session, plan, cluster), image, front, guard, scratch, mounts, folder)


def _policy(plan: Plan) -> str:
    """How Envoy spreads requests."""
    return "hash" if has_sequences(plan) else "l7"


def plans_for(session: Session, lab: Lab, stack: str, choices: Choices) -> tuple[dict[str, Plan], list[str]]:
    """A plan for each profile, with the settings that the profile takes, and what is said of the others.

    Raises LabError: no profile takes a setting; in the words of the profile that was chosen.
    """
    plans, notices, left = dict[str, Plan](), list[str](), dict[str, set[str]]()
    for profile in PROFILES:
        plans[profile], left[profile] = _as_far_as_possible(session, lab, stack, choices, profile)
    if set.intersection(*left.values()):
        for profile in sorted(PROFILES, key=lambda one: one != choices.profile):
            plan_for(session, lab, stack, choices, profile)
    for name, keys in left.items():
        if keys:
            others = ", ".join(f"overlays/{one}" for one in PROFILES if one != name)
            notices.append(f"only {others} has {', '.join(sorted(keys))}: the {name} profile does not take it")
    return plans, notices


def _as_far_as_possible(
    session: Session, lab: Lab, stack: str, choices: Choices, profile: str
) -> tuple[Plan, set[str]]:
    """The profile's plan without as few of the settings as possible, and these."""
    for keys in itertools.chain(*(itertools.combinations(choices.set, n) for n in range(len(choices.set) + 1))):
        kept = {key: value for key, value in choices.set.items() if key not in keys}
        with contextlib.suppress(LabError):
            return plan_for(session, lab, stack, replace(choices, set=kept), profile), set(keys)
    return plan_for(session, lab, stack, replace(choices, set={}), profile), set()  # raises why not


def plan_for(session: Session, lab: Lab, stack: str, choices: Choices, profile: str) -> Plan:
    """A profile's; TensorRT-LLM's releases and their templates are the gpu profile's alone."""
    mine = replace(choices, profile=profile, gpus=())  # a node's GPUs are its scheduler's to give out
    if profile == "cpu":
        mine = replace(mine, release="", templates=None)
    return make_plan(session.workspace, lab, stack, mine, session.runtime("compose").server_path)


def _deployment(session: Session, plans: Mapping[str, Plan], cluster: Cluster, scratch: Path) -> Deployment:
    workspace, plan = session.workspace, plans["cpu"]
    return Deployment(
        stack=plan.name,
        policy=_policy(plan),
        trace=receiver(str(plan.settings["trace"])),
        cluster=cluster,
        envoy=cluster.image(images.client_image(workspace)),
        files=cluster.image(images.files_image(workspace)),
        tools=cluster.image(images.server_image(workspace, compose_commands.TOOLS)),
        serving={profile: _serving(session, each, cluster, scratch / profile) for profile, each in plans.items()},
    )


def _serving(session: Session, plan: Plan, cluster: Cluster, folder: Path) -> Serving:
    runtime = ComposeRuntime(session.workspace)
    common: dict[str, Any] = {
        "server": server(session, plan, cluster),
        "probes": {f"/v2/models/{model}/{probe.path}": probe.body for model, probe in plan.stack.probes.items()},
        "tools": [
            tool
            for step in plan.steps
            if not step.path.is_relative_to(session.workspace.models)
            for tool in _tools(session, runtime, plan, step, cluster)
        ],
    }
    if plan.fetched is not None and not plan.fetched.is_dir():
        chosen = [word for key, value in plan.stack_settings.items() for word in ("--set", f"{key}={value}")]
        release = plan.release.name if plan.release else ""
        render = ["python3", "-m", "labctl", "render", plan.name, "--profile", plan.profile, *chosen]
        render += ["--release", release, "--templates", "/templates", "--output", "/tmp/rendered"]
        return Serving(**common, templates=plan.templates, render=render)
    repository.render(replace(plan.request, output=folder))
    return Serving(**common, repository=folder)


def server(session: Session, plan: Plan, cluster: Cluster) -> Server:
    """Triton as ``labctl up --runtime compose`` would run it for nobody in particular."""
    env, own = launch_values(session, plan)
    on_gpus = plan.profile == "gpu"
    return Server(
        image=cluster.image(env["LABS_SERVER_IMAGE"]),
        entrypoint=own.get("entrypoint", ()),
        arguments=own.get("command", shlex.split(env.get("LABS_SERVER_ARGS", ""))),
        environment=own["environment"],
        closed=env["LABS_CLOSED"],
        shm=env.get("LABS_SHM_SIZE", SHM[plan.profile]),
        exit_s=int(env["LABS_STOP_GRACE"].removesuffix("s")),
        gpus=plan.ranks if on_gpus else 0,
    )


def launch_values(session: Session, plan: Plan) -> tuple[Mapping[str, str], dict[str, Any]]:
    """Compose's variables for a stack, and what only its own override says of the server."""
    record = Record(plan.name, plan.lab.folder, "compose", plan.profile, plan.settings, plan.stack.models, LOCAL)
    launch, projects = launch_of(session.workspace.folder(plan.name), plan, record), Projects(session.workspace)
    own = compose_commands.services(projects, launch)["triton"]
    del own["labels"]
    return {**compose_commands.serve(projects, launch).env, "LABS_SERVER_USER": f"{NOBODY}:{NOBODY}"}, own


def _tools(session: Session, runtime: ComposeRuntime, plan: Plan, step: Step, cluster: Cluster) -> list[Tool]:
    """What makes an artifact, command by command, as Compose's engine-builder would."""
    workspace, made = session.workspace, runtime.server_path(step.path)
    if step.image_build:
        asked, program, gpus = engine_actions(plan, step, runtime, workspace), "env", plan.ranks
    else:
        asked, program, gpus = [runtime.tool(step.title, step.argv)], "python3", 0
    found = []
    for command in (one for action in asked for one in action.commands):
        words = list(command.argv)
        arguments = words[words.index("engine-builder") + 1 :]
        found.append(Tool(cluster.image(command.env["LABS_SERVER_IMAGE"]), [program, *arguments], made, gpus))
    return found


def images_to_build(session: Session, lab: Lab, stack: str, choices: Choices, registry: str) -> tuple[Todo, list[str]]:
    """What builds those that are not here and pushes all of them to ``registry`` ("" is none), and their names.

    Raises LabError: the stack cannot have these choices.
    """
    _, choices = cluster_of("kubernetes", choices)  # what it says changes no image
    plan, projects = plan_for(session, lab, stack, choices, choices.profile), Projects(session.workspace)
    builds = compose_commands.builds(projects, choices.profile, plan.image)
    files = images.files_image(session.workspace)
    builds[files] = compose_commands.build_files(projects, files)
    actions = build(builds, plan.image)
    if registry:
        actions += [push(name, registry) for name in builds]
    names = [f"{registry}/{name}" if registry else name for name in builds]
    return Todo("compose", choices.profile, list(plan.notices), list(actions)), names
