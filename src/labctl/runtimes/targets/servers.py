"""The server's replicas on Kubernetes, and the Job that makes their weights and engines."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path

from labctl.runtimes.targets import pods
from labctl.runtimes.targets.composed import scratch
from labctl.runtimes.targets.deployment import Deployment, Manifest, Serving, files, key, manifest

CHECKOUT, CACHE, TMP, MODELS = "/labs/checkout", "/labs/cache", "/tmp", "/models"
PATHS = {"LABS_ROOT": CHECKOUT, "LABS_CACHE": CACHE, "HOME": TMP}
SIZES = {  # limits and requests
    "cpu": ({"cpu": "4", "memory": "8Gi"}, {"cpu": "1", "memory": "2Gi"}),
    "gpu": ({"cpu": "16", "memory": "64Gi"}, {"cpu": "4", "memory": "32Gi"}),
}
SHIPPED = {"name": "checkout", "mountPath": "/labs/models", "subPath": "models"}


def server(deployment: Deployment, profile: str) -> Manifest:
    labels = deployment.labels("triton")
    rolling = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}}
    own: Manifest = {"strategy": rolling}
    if deployment.kind == "StatefulSet":
        own = {"serviceName": deployment.server, "podManagementPolicy": "Parallel",
               "updateStrategy": {"type": "RollingUpdate"}}  # fmt: skip
    spec = {
        "selector": {"matchLabels": labels},
        "minReadySeconds": 5,
        **own,  # and no number of replicas: that is the autoscaler's
        "template": pods.template(labels, server_pod(deployment, profile)),
    }
    return manifest("apps/v1", deployment.kind, deployment.server, labels, spec=spec)


def server_pod(deployment: Deployment, profile: str) -> Manifest:
    """The pod's spec, which is all that profiles differ in."""
    serving = deployment.serving[profile]
    service = serving.service
    lifecycle, grace = pods.drained(service)
    container = pods.container("triton", service, *SIZES[profile])
    container |= {"ports": pods.ports(), **pods.server_probes(serving.probes), "lifecycle": lifecycle}
    container["volumeMounts"] = [
        {**SHIPPED, "readOnly": True} if mount["mountPath"] == SHIPPED["mountPath"] else mount
        for mount in container["volumeMounts"]
    ]
    places = [mount["target"] for mount in service["volumes"] if mount["target"] != SHIPPED["mountPath"]]
    volumes = [
        *({"name": pods.volume(place), **pods.memory("1Gi")} for place in scratch(service)),
        {"name": "shm", **pods.memory(pods.size(str(service["shm_size"])))},
        *({"name": pods.volume(place), **_mounted(deployment, place)} for place in places),
        {"name": "checkout", "emptyDir": {}},
        _source(deployment, serving),
        {"name": "secrets", "secret": {"secretName": deployment.server, "optional": True, "defaultMode": 0o440}},
    ]
    spec = {
        "topologySpreadConstraints": pods.spread(deployment.labels("triton")),
        "initContainers": _before(deployment, serving),
        "containers": [container],
        "volumes": volumes,
    }
    return pods.pod(spec, pods.user(service), deployment.stack, grace)


def _mounted(deployment: Deployment, place: str) -> Manifest:
    """What is mounted at a place of the server's."""
    if place == CACHE and deployment.prepared:
        return {"persistentVolumeClaim": {"claimName": f"{deployment.stack}-cache"}}
    return {"emptyDir": {}}


def _source(deployment: Deployment, serving: Serving) -> Manifest:
    """What the repository is made from."""
    if serving.repository is None:
        return {"name": "templates", "emptyDir": {}}
    items = [{"key": key(path), "path": path} for path in files(serving.repository)]
    return {"name": "rendered", "configMap": {"name": f"{deployment.stack}-repository", "items": items}}


def _before(deployment: Deployment, serving: Serving) -> list[Manifest]:
    """What a server's pod does first: files and repository into place, and patience until the Job is done."""
    user = pods.user(serving.service)

    def first(name: str, image: str, command: str, mounts: Mapping[str, str]) -> Manifest:
        return pods.helper(name, image, ["sh", "-c", command], mounts, PATHS, user)

    found = [_files(deployment, user)]
    if serving.tools:
        there = " && ".join(f"[ -e {shlex.quote(tool.makes)} ]" for tool in serving.tools)
        found.append(first("wait-for-weights", deployment.tools, f"until {there}; do sleep 2; done", {CACHE: "cache"}))
    if serving.repository is not None:
        mounts = {"/labs/rendered": "rendered", MODELS: "models"}
        return [*found, first("repository", deployment.tools, unpacked(serving.repository), mounts)]
    copy = f"cp -rL {shlex.quote(serving.templates)}/. /templates/"
    fill = f"{shlex.join(serving.fill)} && cp -r /tmp/rendered/. {MODELS}/"
    mounts = {CHECKOUT: "checkout", CACHE: "cache", "/templates": "templates", MODELS: "models", TMP: "tmp"}
    return [
        *found,
        first("templates", str(serving.service["image"]), copy, {"/templates": "templates"}),
        first("repository", deployment.tools, fill, mounts),
    ]


def _files(deployment: Deployment, user: Manifest) -> Manifest:
    copy = f"cp -r {CHECKOUT}/. /to/"
    return pods.helper("files", deployment.files, ["sh", "-c", copy], {"/to": "checkout"}, {}, user)


def unpacked(repository: Path) -> str:
    """The command that makes the repository of its ConfigMap, without what Kubernetes keeps beside the files."""
    words = [f"cp -rL /labs/rendered/* {MODELS}/"]
    for path in sorted(repository.rglob("*")):
        place = Path(MODELS) / path.relative_to(repository)
        if path.is_symlink():
            words.append(shlex.join(["mkdir", "-p", str(place.parent)]))
            words.append(shlex.join(["ln", "-s", str(path.readlink()), str(place)]))
        elif path.is_dir() and not any(path.iterdir()):
            words.append(shlex.join(["mkdir", "-p", str(place)]))
    return " && ".join(words)


def job(deployment: Deployment, profile: str) -> Manifest:
    """Weights and engines, made once on the volume; each step finds done what was done before."""
    labels = deployment.labels("prepare")
    spec = {"backoffLimit": 4, "template": pods.template(labels, job_pod(deployment, profile))}
    return manifest("batch/v1", "Job", f"{deployment.stack}-prepare", labels, spec=spec)


def job_pod(deployment: Deployment, profile: str) -> Manifest:
    serving = deployment.serving[profile]
    user = pods.user(serving.service)
    mounts = {CHECKOUT: "checkout", CACHE: "cache", TMP: "tmp"}
    secret = {"name": f"{deployment.stack}-hub-token", "key": "token", "optional": True}
    steps = []
    for number, tool in enumerate(serving.tools, 1):
        step = pods.helper(f"step-{number}", tool.image, tool.command, mounts, PATHS, user, "16Gi", tool.gpus)
        step["env"].append({"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": secret}})
        step["volumeMounts"].append({**SHIPPED, "readOnly": True})
        steps.append(step)
    steps = steps or [pods.helper("nothing-to-make", deployment.tools, ["true"], mounts, {}, user)]
    spec = {
        "restartPolicy": "OnFailure",
        "initContainers": [_files(deployment, user), *steps[:-1]],
        "containers": steps[-1:],
        "volumes": [
            {"name": "checkout", "emptyDir": {}},
            {"name": "cache", **_mounted(deployment, CACHE)},
            {"name": "tmp", "emptyDir": {"sizeLimit": "20Gi"}},
        ],
    }
    return pods.pod(spec, user, deployment.stack, 30)


def cache(deployment: Deployment) -> Manifest:
    """Many nodes read what one Job writes."""
    spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "20Gi"}}}
    return manifest("v1", "PersistentVolumeClaim", f"{deployment.stack}-cache", spec=spec)
