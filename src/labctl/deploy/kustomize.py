"""The files of a stack for Kubernetes: ``kubernetes/`` filled, without what the stack does not need."""

from __future__ import annotations

import copy
import hashlib
import json
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from labctl.deploy.stack import CONFIG, Deployment, Tool, dump, fill, parse
from labctl.runtimes.envoy import config as envoy_config
from labkit.errors import LabError
from labkit.strict_yaml import parse_yaml

Manifest = dict[str, Any]
MOST_BYTES = 2**20  # of a ConfigMap
HEADER = "# Rendered by labctl from the manifest of {stack}. Render again rather than edit.\n"
COMPOSE_SOURCE, USUAL_SOURCE = "labs-prometheus", "prometheus"  # a dashboard's data source in Compose and elsewhere


def write(deployment: Deployment, folder: Path, observe: Path) -> None:
    """Write base and overlays into an empty folder. ``observe`` has rules and dashboards."""
    base, cluster = folder / "base", deployment.cluster
    kustomization = deployment.read("base/kustomization.yaml")
    names = set(kustomization["resources"])
    if not deployment.prepared:
        names.remove("cache.yaml")
    changed = {"triton.yaml": _server(deployment, "cpu"), "envoy.yaml": _envoy(deployment)}
    generated = [{"name": f"{deployment.stack}-envoy", "files": ["envoy.json"]}, _repository(deployment, "cpu", base)]
    if not deployment.trace:
        for name in ("network-triton.yaml", "network-envoy.yaml"):
            changed[name] = deployment.read(f"base/{name}")
            changed[name]["spec"]["egress"].pop()  # the receiver's
    if cluster.keda:
        changed["autoscaler.yaml"] = deployment.read("operators/autoscaler.yaml")
    if cluster.prometheus_release:
        names |= {"podmonitor.yaml", "prometheusrule.yaml"}
        changed["podmonitor.yaml"] = deployment.read("operators/podmonitor.yaml")
        changed["prometheusrule.yaml"] = rule = deployment.read("operators/prometheusrule.yaml")
        rule["spec"]["groups"] = parse_yaml((observe / "rules.yaml").read_text(encoding="utf-8"))["groups"]
        generated.append(_dashboards(deployment, observe, base))
    changed["kustomization.yaml"] = {**kustomization, "resources": sorted(names), "configMapGenerator": generated}
    for name in {*names, *changed}:
        _write(deployment, base / name, changed[name] if name in changed else _fill(deployment, f"base/{name}"))
    token = envoy_config.PLACEHOLDER if cluster.guard else ""
    config = envoy_config.over_names(deployment.policy, deployment.server_names, deployment.trace, token)
    (base / "envoy.json").write_text(f"{json.dumps(config, indent=1)}\n", encoding="utf-8")
    for profile in deployment.serving:
        _overlay(deployment, profile, folder / "overlays" / profile)


def _fill(deployment: Deployment, name: str) -> Any:
    """The text of a filled file, with its comments; its document where something empty is left out of it."""
    text = fill(f"kubernetes/{name}", deployment.values)
    return text if (document := parse(text)) == parse_yaml(text) else document


def _write(deployment: Deployment, path: Path, content: Any) -> None:
    """Write a text as it is, and a document as YAML."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = content if isinstance(content, str) else dump(content)
    path.write_text(HEADER.format(stack=deployment.stack) + text, encoding="utf-8")


def _overlay(deployment: Deployment, profile: str, folder: Path) -> None:
    """A profile over the base, which is the cpu profile's: another pod on nodes with GPUs, and another repository."""
    document = deployment.read(f"overlays/{profile}/kustomization.yaml")
    document["resources"] = ["../../base"]
    serving, placement = deployment.serving[profile], {}
    if profile == "gpu":
        target = {"kind": deployment.values["kind"], "name": f"{deployment.stack}-triton"}
        pod = _server(deployment, profile)["spec"]["template"]["spec"]
        replace = {"op": "replace", "path": "/spec/template/spec", "value": pod}
        _write(deployment, folder / "triton-pod-patch.yaml", [replace])
        document["patches"].insert(0, {"path": "triton-pod-patch.yaml", "target": target})
        patch = deployment.read("overlays/gpu/triton-patch.yaml", gpus=serving.server.gpus) | {"kind": target["kind"]}
        over = patch["spec"]["template"]["spec"]
        if deployment.cluster.gpu_product or not any(tool.gpus for tool in serving.tools):
            del over["affinity"]  # the kind of GPU is named, or no engine is bound to one
        if deployment.cluster.cpu_request:
            over["containers"][0]["resources"]["requests"]["cpu"] = deployment.cluster.cpu_request
        _write(deployment, folder / "triton-patch.yaml", patch)
        placement = {key: over[key] for key in ("tolerations", "nodeSelector", "affinity") if key in over}
        if serving.repository:
            document["configMapGenerator"] = [{**_repository(deployment, profile, folder), "behavior": "replace"}]
    if serving.tools:
        _write(deployment, folder / "prepare.yaml", _job(deployment, serving.tools, placement))
        _write(deployment, folder / "network-prepare.yaml", _fill(deployment, "prepare/network-prepare.yaml"))
        document["resources"] += ["network-prepare.yaml", "prepare.yaml"]
    _write(deployment, folder / "kustomization.yaml", document)


def _server(deployment: Deployment, profile: str) -> Manifest:
    """The servers with a profile's image, arguments and repository."""
    serving = deployment.serving[profile]
    server, repository = serving.server, serving.repository
    document: Manifest = deployment.read(
        "base/triton.yaml",
        image=server.image,
        closed=server.closed,
        shm=f"{server.shm[:-1]}{server.shm[-1].upper()}i",
        made=" && ".join(f"[ -e {shlex.quote(tool.makes)} ]" for tool in serving.tools),
        unpack=unpack(repository) if repository else "",
        templates=shlex.quote(serving.templates),
        render=shlex.join(serving.render),
        probes=json.dumps(serving.probes),
    )
    pod = document["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    wait = int(container["lifecycle"]["preStop"]["exec"]["command"][-1])
    pod["terminationGracePeriodSeconds"] = wait + server.exit_s
    words = {"command": list(server.entrypoint), "args": list(server.arguments)}
    container |= {key: value for key, value in words.items() if value}
    container["env"] += [{"name": key, "value": value} for key, value in server.environment.items()]
    if deployment.cluster.cpu_request:
        container["resources"]["requests"]["cpu"] = deployment.cluster.cpu_request
    if not serving.probes:
        ready = {"httpGet": container["readinessProbe"]["httpGet"]}
        container["startupProbe"] = {**ready, **container["startupProbe"]}
        del container["startupProbe"]["exec"]
    unneeded = {"templates", "render"} if repository else {"repository", "rendered"}
    if not serving.tools:
        unneeded.add("wait-for-weights")
    for part in ("initContainers", "volumes"):
        pod[part] = [item for item in pod[part] if item["name"] not in unneeded]
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    if repository:
        volumes["rendered"]["configMap"]["items"] = [{"key": _key(path), "path": path} for path in files(repository)]
    if not deployment.prepared:
        del volumes["cache"]["persistentVolumeClaim"]
        volumes["cache"]["emptyDir"] = {"sizeLimit": "1Gi"}
    if deployment.stateful:
        document["kind"], spec = "StatefulSet", document["spec"]
        del spec["strategy"]
        spec |= {"serviceName": f"{deployment.stack}-triton", "podManagementPolicy": "Parallel"}
        spec["updateStrategy"] = {"type": "RollingUpdate"}
    return document


def _envoy(deployment: Deployment) -> Manifest:
    document: Manifest = deployment.read("base/envoy.yaml")
    if deployment.remembers_sequences:
        document["spec"]["replicas"] = 1
    if not deployment.cluster.guard:
        (container,) = document["spec"]["template"]["spec"]["containers"]
        container["command"] = ["envoy", *envoy_config.arguments(CONFIG)]
    return document


def _job(deployment: Deployment, tools: Sequence[Tool], placement: Manifest) -> Manifest:
    """A profile's Job, a container for each step; with GPUs it runs where ``placement`` lets the servers run."""
    document: Manifest = deployment.read("prepare/prepare.yaml")
    pod = document["spec"]["template"]["spec"]
    (pattern,) = pod["containers"]
    steps = []
    for number, tool in enumerate(tools, 1):
        step = copy.deepcopy(pattern) | {"name": f"step-{number}", "image": tool.image, "command": list(tool.command)}
        for resources in step["resources"].values() if tool.gpus else ():
            resources["nvidia.com/gpu"] = str(tool.gpus)
        steps.append(step)
    *first, pod["containers"][0] = steps
    pod["initContainers"] += first
    if any(tool.gpus for tool in tools):
        pod |= placement
    digest = hashlib.sha256(json.dumps(document["spec"]["template"], sort_keys=True).encode()).hexdigest()[:10]
    document["metadata"]["name"] += f"-{digest}"
    return document


def _dashboards(deployment: Deployment, observe: Path, base: Path) -> Manifest:
    """A generator's entry for the dashboards, copied beside the manifests; Grafana's sidecar finds them by a label."""
    names = []
    for source in sorted((observe / "dashboards").glob("*.json")):
        target = base / "dashboards" / source.name
        target.parent.mkdir(parents=True, exist_ok=True)
        text = source.read_text(encoding="utf-8").replace(f'"{COMPOSE_SOURCE}"', f'"{USUAL_SOURCE}"')
        target.write_text(text, encoding="utf-8")
        names.append(f"dashboards/{source.name}")
    return {"name": f"{deployment.stack}-dashboards", "files": names, "options": {"labels": {"grafana_dashboard": "1"}}}


# The rendered repository as a ConfigMap: its keys are flat, and it has neither links nor empty folders.


def files(repository: Path) -> list[str]:
    """The files of a rendered repository, by their paths in it."""
    every = (path for path in repository.rglob("*") if path.is_file() and not path.is_symlink())
    return sorted(str(path.relative_to(repository)) for path in every)


def _key(path: str) -> str:
    return path.replace("/", "--")


def unpack(repository: Path) -> str:
    """The command that makes the repository of its ConfigMap, without what Kubernetes keeps beside the files."""
    words = ["cp -rL /labs/rendered/* /models/"]
    for path in sorted(repository.rglob("*")):
        place = Path("/models") / path.relative_to(repository)
        link = path.is_symlink()
        if link or (path.is_dir() and not any(path.iterdir())):
            words.append(shlex.join(["mkdir", "-p", str(place.parent if link else place)]))
        if link:
            words.append(shlex.join(["ln", "-s", str(path.readlink()), str(place)]))
    return " && ".join(words)


def _repository(deployment: Deployment, profile: str, folder: Path) -> Manifest:
    """A profile's rendered repository, copied beside the manifests, as a ConfigMap."""
    source = deployment.serving[profile].repository
    assert source is not None
    names = files(source)
    size = sum((source / name).stat().st_size for name in names)
    if size > MOST_BYTES:
        raise LabError(
            f"the repository of {deployment.stack} has {size / 2**20:.1f} MiB",
            "Kubernetes takes 1 MiB in a ConfigMap",
            "keep large files in the cache (artifacts of lab.yaml), not in the templates",
        )
    # What is called .yaml below these folders is a manifest, or it has another name.
    copies = {name: f"repository/{name}{'.txt' * name.endswith(('.yaml', '.yml'))}" for name in names}
    for name, copied in copies.items():
        (folder / copied).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / name, folder / copied)
    listed = [f"{_key(name)}={copied}" for name, copied in copies.items()]
    return {"name": f"{deployment.stack}-repository", "files": listed}
