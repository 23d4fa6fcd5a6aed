"""``labctl render --target kubernetes|swarm``: a copy of the files in deploy/, and beside it what a stack adds.

For Kubernetes that is a ``kustomization.yaml``, for Swarm a ``stack.env``. Both name the images, and files that lie
beside them: the rendered repository, Envoy's configuration, the token, and the servers' environment.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import secrets
import shlex
import shutil
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from labctl import repository
from labctl.manifest.schema import Lab
from labctl.options import Options
from labctl.plan import Plan, make_plan
from labctl.runtimes import compose_commands, images
from labctl.runtimes.compose import ComposeRuntime
from labctl.runtimes.compose_commands import Projects
from labctl.runtimes.envoy import config as envoy
from labctl.stack.prepare import made_by_job, scripts
from labctl.stack.session import Session
from labctl.stack.stack import has_sequences
from labctl.triton.arguments import receiver
from labctl.unfinished import replace_dir
from labctl.workspace import Workspace
from labkit.errors import LabError
from labkit.strict_yaml import Dumper, parse_yaml

Document = dict[str, Any]
MARK = ".labctl-rendered.json"  # a folder with it is ours to replace
MOST_SERVERS = 8  # deploy/kubernetes/components/replicas/autoscaler.yaml
MOST_BYTES = 2**20  # of a ConfigMap
PRIVATE = ("envoy.json", "token")  # Envoy's configuration has the token in it
COMPOSE_SOURCE, USUAL_SOURCE = "labs-prometheus", "prometheus"  # a dashboard's data source in Compose and elsewhere
COMPONENTS = "kubernetes/components"
GPU, WEIGHTS = f"{COMPONENTS}/gpu", f"{COMPONENTS}/weights"  # labctl lists these as the stack needs them
# The volume with the weights, for every pod that reads them, whichever components are listed.
CACHE = {"target": {"kind": "StatefulSet|Deployment", "name": "triton|openai"}, "path": f"{WEIGHTS}/cache.yaml"}
HEADER = """\
# {stack}, rendered by labctl. When it is rendered again, labctl keeps `namespace` and what you list under `components`:
#   kubernetes/components/door       the OpenAI API, for models that continue texts
#   kubernetes/components/observe    for Prometheus Operator and Grafana
#   ../mine                          a component of your own, with patches (docs/operate/kubernetes.md)
"""
NEXT = {
    "kubernetes": "kubectl apply -k {folder} (docs/operate/kubernetes.md)",
    "swarm": "set -a; . {folder}/stack.env; set +a; "
    "docker stack deploy --resolve-image never -c {folder}/stack.yaml {stack} (docs/operate/swarm.md)",
}


@dataclass(frozen=True)
class _Customization:
    """What labctl leaves as it is when a stack is rendered again: token, namespace, and the listed components."""

    token: str
    namespace: str
    components: Sequence[str] = (f"{COMPONENTS}/guard", f"{COMPONENTS}/replicas")

    @classmethod
    def of(cls, folder: Path, stack: str) -> _Customization:
        """Raises LabError where a file in the folder cannot be read."""
        mark, token, path = (folder / name for name in (MARK, "token", "kustomization.yaml"))
        if not token.exists():
            return cls(secrets.token_urlsafe(32), stack)
        with _reading(mark):
            former = json.loads(mark.read_text(encoding="utf-8"))["stack"]
        if former != stack:
            return cls(secrets.token_urlsafe(32), stack)
        with _reading(token):
            kept = cls(token.read_text(encoding="ascii"), stack)
        if path.exists():  # else it is for Swarm
            with _reading(path):
                document = parse_yaml(path.read_text(encoding="utf-8"))
                kept = replace(kept, namespace=document["namespace"], components=document["components"])
        return kept


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Raises LabError where the block finds a file of the last rendering damaged."""
    try:
        yield
    except (yaml.YAMLError, ValueError, KeyError, TypeError) as error:
        remedy = "correct it, or name another --output"
        raise LabError(f"{path} cannot be read", str(error), remedy, code="deploy-file-unreadable") from error


class _Blocks(Dumper):  # type: ignore[misc]
    """Patches as blocks of text."""


_Blocks.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None),
)


def render_deployment(
    session: Session, lab: Lab, stack: str, options: Options, target: str, registry: str, output: Path | None
) -> str:
    """Write the files of a stack for that target; what to do with them.

    Args:
        registry: where nodes pull the images from ("registry.example.com/labs"); "" is under their own names.

    Raises LabError: the stack cannot be rendered, or the folder has somebody else's files.
    """
    folder = output or session.workspace.folder(stack).path / target
    if folder.exists() and not (folder / MARK).is_file() and any(folder.iterdir()):
        raise LabError(
            f"{folder} is not empty",
            "labctl has not rendered what is in it",
            "name another --output",
            code="output-not-empty",
        )
    plan = _plan(session, lab, stack, options)
    if target == "swarm" and plan.ranks > 1:
        raise LabError(
            f"{stack} is spread over {plan.ranks} GPUs",
            "the file for Swarm is for servers with one",
            "a smaller tp_size or pp_size, or --target kubernetes",
            code="swarm-spread",
        )

    for notice in plan.notices:
        session.listener.note(notice)
    custom = _Customization.of(folder, stack)
    with replace_dir(folder) as fresh:
        repository.render_repository(replace(plan.request, output=fresh / "repository"))
        _write_front(plan, target, custom.token, fresh)
        names = _images(session.workspace, plan, registry)
        if target == "kubernetes":
            _write_kubernetes(session.workspace, plan, custom, names, fresh)
        else:
            _write_swarm(session.workspace, plan, names, fresh)
        mark = {"stack": stack, "target": target, "settings": dict(plan.settings)}
        (fresh / MARK).write_text(json.dumps(mark, indent=1, default=str), encoding="utf-8")
    for name in PRIVATE:
        (folder / name).chmod(0o600)
    return f"{folder}: {NEXT[target].format(folder=folder, stack=stack)}; the token is in {folder}/token"


def build_images(session: Session, lab: Lab, stack: str, options: Options, registry: str) -> list[str]:
    """Build the images that are missing, and push all of them to ``registry`` ("" is none); their names.

    Raises LabError: the stack cannot have these options, or one cannot be made.
    """
    plan, projects = _plan(session, lab, stack, options), Projects(session.workspace)
    builds = compose_commands.builds(projects, plan.profile, plan.image, plan.stack.packages)
    files = images.files_image(session.workspace)
    builds[files] = compose_commands.build_files(projects, files)
    needed = set(_images(session.workspace, plan, "").values())
    builds = {name: command for name, command in builds.items() if name in needed}
    for notice in plan.notices:
        session.listener.note(notice)
    images.build_missing_images(session.listener, builds, plan.image)
    if not registry:
        return list(builds)
    for name in builds:
        images.push(session.listener, name, registry)
    return [f"{registry}/{name}" for name in builds]


def _plan(session: Session, lab: Lab, stack: str, options: Options) -> Plan:
    """The plan for containers. A node's GPUs are its scheduler's to give out."""
    return make_plan(session.workspace, lab, stack, replace(options, gpus=()), session.runtime("compose").server_path)


def _images(workspace: Workspace, plan: Plan, registry: str) -> dict[str, str]:
    """The images by their names in deploy/."""
    names = {  # in the order in which Kustomize replaces them: what becomes labs-server comes after labs-server
        "labs-client": images.client_image(workspace),
        "labs-envoy": images.client_image(workspace),
        "labs-files": images.files_image(workspace),
        "labs-server": images.server_image(workspace, plan.profile, plan.image, plan.stack.packages),
        "labs-tools": images.server_image(workspace, compose_commands.TOOLS),
    }
    return {name: f"{registry}/{image}" if registry else image for name, image in names.items()}


def _write_front(plan: Plan, target: str, token: str, folder: Path) -> None:
    """Envoy's configuration, the token, and the environments of the server and of the OpenAI API."""
    named = has_sequences(plan) and target == "kubernetes"  # Swarm's replicas have no names of their own
    names = [f"triton-{number}.triton" for number in range(MOST_SERVERS)] if named else ["triton"]
    policy = "hash" if has_sequences(plan) else "l7"
    config = envoy.over_names(policy, names, receiver(str(plan.settings["trace"])), token)
    (folder / "envoy.json").write_text(f"{json.dumps(config, indent=1)}\n", encoding="utf-8")
    (folder / "token").write_text(token, encoding="ascii")
    _write_env(folder / "triton.env", {"LABS_STACK": plan.name, **plan.server_env})


def _openai(workspace: Workspace, plan: Plan) -> dict[str, str]:
    """The OpenAI API's variables for the stack; {} if none of its models continues texts."""
    if plan.stack.bench is None:
        return {}
    tokenizer = ComposeRuntime(workspace).client_path(Path(plan.tokenizer_dir)) if plan.tokenizer_dir else ""
    return {"LABS_OPENAI_MODELS": ",".join(plan.stack.models), "LABS_OPENAI_TOKENIZER": tokenizer}


def _write_env(path: Path, values: Mapping[str, str]) -> None:
    path.write_text("".join(f"{key}={value}\n" for key, value in values.items()), encoding="utf-8")


# -- Kubernetes --------------------------------------------------------------------------------------------------------


def _write_kubernetes(
    workspace: Workspace, plan: Plan, custom: _Customization, names: Mapping[str, str], folder: Path
) -> None:
    static = folder / "kubernetes"
    shutil.copytree(workspace.root / "deploy" / "kubernetes", static)
    _write_observe(workspace.observe, static / "components" / "observe")
    (folder / "probes.json").write_text(json.dumps(_probes(plan), indent=1), encoding="utf-8")
    generators: list[Document] = [
        {"name": "triton", "envs": ["triton.env"]},
        {"name": "repository", "files": ["links", "probes.json", *_repository_files(plan, folder)]},
    ]
    if values := _openai(workspace, plan):
        _write_env(folder / "openai.env", values)
        generators.append({"name": "openai", "envs": ["openai.env"]})
    components, patches = [GPU] if plan.profile == "gpu" else [], list(_server_patches(plan))
    if made := made_by_job(workspace, plan):
        components.append(WEIGHTS)
        files = {f"prepare/{name}": text for name, text in scripts(workspace, plan, made).items()}
        (folder / "prepare").mkdir()
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
        generators.append({"name": "prepare", "files": list(files)})
        patches += [CACHE, _job_patch(plan, names, folder)]
    document = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": custom.namespace,
        "resources": ["kubernetes/base"],
        "components": [*components, *(name for name in custom.components if name not in (GPU, WEIGHTS))],
        "labels": [{"pairs": {"app.kubernetes.io/instance": plan.name}, "includeTemplates": True}],
        "images": [
            {"name": name, "newName": image.rpartition(":")[0], "newTag": image.rpartition(":")[2]}
            for name, image in names.items()
        ],
        "configMapGenerator": generators,
        "secretGenerator": [
            {"name": "envoy", "files": ["envoy.json"]},
            {"name": "token", "files": ["token"], "options": {"disableNameSuffixHash": True}},
        ],
        "patches": patches,
    }
    text = yaml.dump(document, Dumper=_Blocks, sort_keys=False, width=120)
    (folder / "kustomization.yaml").write_text(HEADER.format(stack=plan.name) + text, encoding="utf-8")


def _write_observe(source: Path, component: Path) -> None:
    """The recording rules and alerts as a resource of Prometheus Operator, and the dashboards."""
    head = "apiVersion: monitoring.coreos.com/v1\nkind: PrometheusRule\nmetadata: {name: labs}\nspec:\n"
    rules = textwrap.indent((source / "rules.yaml").read_text(encoding="utf-8"), "  ")
    (component / "rules.yaml").write_text(head + rules, encoding="utf-8")
    (component / "dashboards").mkdir()
    for path in (source / "dashboards").glob("*.json"):
        text = path.read_text(encoding="utf-8").replace(f'"{COMPOSE_SOURCE}"', f'"{USUAL_SOURCE}"')
        (component / "dashboards" / path.name).write_text(text, encoding="utf-8")


def _repository_files(plan: Plan, folder: Path) -> list[str]:
    """The entries of the repository's ConfigMap, whose keys are flat ("--" is "/"). Links are lines of a file.

    Raises LabError: the repository cannot be a ConfigMap.
    """
    root = folder / "repository"
    links = [path for path in sorted(root.rglob("*")) if path.is_symlink()]
    lines = [f"{path.relative_to(root)} {path.readlink()}\n" for path in links]
    (folder / "links").write_text("".join(lines), encoding="utf-8")
    files = [path for path in sorted(root.rglob("*")) if path.is_file() and not path.is_symlink()]
    size = sum(path.stat().st_size for path in files)
    if size > MOST_BYTES:
        raise LabError(
            f"the repository of {plan.name} has {size / 2**20:.1f} MiB",
            "Kubernetes takes 1 MiB in a ConfigMap",
            "keep large files in the cache (artifacts of lab.yaml), not in the templates",
            code="configmap-too-large",
        )
    names = [str(path.relative_to(root)) for path in files]
    if odd := [name for name in names if "--" in name]:
        raise LabError(
            f"{odd[0]} cannot be a key of a ConfigMap",
            "'--' stands for '/' there",
            "rename the file",
            code="configmap-key-invalid",
        )
    return [f"{name.replace('/', '--')}=repository/{name}" for name in names]


def _probes(plan: Plan) -> dict[str, Any]:
    """What each model is asked once before its server counts as started: a body for each path."""
    return {f"/v2/models/{model}/{probe.path}": probe.body for model, probe in plan.stack.probes.items()}


def _server_patches(plan: Plan) -> Iterator[Document]:
    container = "/spec/template/spec/containers/0"
    if plan.ranks > 1:
        words = ["launch-ranks", plan.launcher, str(plan.ranks)]
        gpus = [_gpus(part, plan.ranks) for part in ("requests", "limits")]
        yield _patch("StatefulSet", "triton", {"op": "add", "path": f"{container}/command", "value": words}, *gpus)
    else:
        args = {"op": "add", "path": f"{container}/args", "value": compose_commands.arguments_inside(plan)}
        yield _patch("StatefulSet", "triton", args)
    if trace := receiver(str(plan.settings["trace"])):
        ports = [{"protocol": protocol, "port": 53} for protocol in ("UDP", "TCP")]
        ports.append({"protocol": "TCP", "port": urlsplit(trace).port or 80})
        rule = {"op": "add", "path": "/spec/egress/-", "value": {"ports": ports}}
        yield _patch("NetworkPolicy", "triton|envoy", rule)


def _patch(kind: str, name: str, *operations: Mapping[str, Any]) -> Document:
    text = yaml.dump(list(operations), Dumper=Dumper, sort_keys=False, width=120)
    return {"target": {"kind": kind, "name": name}, "patch": text}


def _gpus(part: str, count: int) -> Document:
    path = f"/spec/template/spec/containers/0/resources/{part}/nvidia.com~1gpu"
    return {"op": "add", "path": path, "value": str(count)}


def _job_patch(plan: Plan, names: Mapping[str, str], folder: Path) -> Document:
    """The Job's GPUs, and a name of its own for each version of the Job: Kubernetes lets nobody change one."""
    engines = bool(plan.image_builds)
    component = folder / "kubernetes" / "components" / "weights"
    parts = [path.read_bytes() for path in sorted([*component.iterdir(), *(folder / "prepare").iterdir()])]
    parts.append(json.dumps([names, plan.ranks, engines]).encode())
    digest = hashlib.sha256(b"\0".join(parts)).hexdigest()[:10]
    renamed = {"op": "replace", "path": "/metadata/name", "value": f"prepare-{digest}"}
    gpus = [_gpus(part, plan.ranks) for part in ("requests", "limits")] if engines else []
    return _patch("Job", "prepare", *gpus, renamed)


# -- Swarm -------------------------------------------------------------------------------------------------------------


def _write_swarm(workspace: Workspace, plan: Plan, names: Mapping[str, str], folder: Path) -> None:
    for name in ("stack.yaml", "gpu.yaml") if plan.profile == "gpu" else ("stack.yaml",):
        shutil.copyfile(workspace.root / "deploy" / "swarm" / name, folder / name)
    values = {
        "LABS_STACK": plan.name,
        "LABS_CONTENT": hashlib.sha256((folder / "envoy.json").read_bytes()).hexdigest()[:12],
        "LABS_SERVER_IMAGE": names["labs-server"],
        "LABS_ENVOY_IMAGE": names["labs-envoy"],
        "LABS_CLIENT_IMAGE": names["labs-client"],
        "LABS_SERVER_ARGS": shlex.join(compose_commands.arguments_inside(plan)),
        "LABS_MODELS": str(workspace.models),
        "LABS_CACHE": str(workspace.cache),
        **_openai(workspace, plan),
    }
    _write_env(folder / "stack.env", {key: shlex.quote(value) for key, value in values.items()})
