"""What Compose would run as one container, as a Kubernetes pod: the same image, command, mounts and environment."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from labctl.runtimes.arguments import GRPC, HTTP, METRICS
from labctl.runtimes.targets.composed import gpus, scratch, seconds
from labctl.runtimes.targets.deployment import Manifest

DRAIN_S = 10  # between leaving the balancer and being asked to stop: DNS and health checks have noticed by then
SECRETS = "/run/secrets"
HARDENED = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}
# One tiny inference of each model: a model whose process has died is still READY for Triton.
ANSWERS = """\
import json, sys, urllib.request as u
for path, body in json.loads(sys.argv[1]).items():
    text = u.urlopen(u.Request("http://127.0.0.1:8000" + path, json.dumps(body).encode()), timeout=20).read(200)
    assert b'"error"' not in text, (path, text)
"""


def container(
    name: str, service: Mapping[str, Any], limits: Mapping[str, str], requests: Mapping[str, str]
) -> Manifest:  # fmt: skip
    """A container of that Compose service; its mounts are named by :func:`volume`."""
    mounts: list[Manifest] = [{"name": volume(place), "mountPath": place} for place in scratch(service)]
    if "shm_size" in service:
        mounts.append({"name": "shm", "mountPath": "/dev/shm"})
    mounts += [
        {"name": volume(mount["target"]), "mountPath": mount["target"],
         **({"readOnly": True} if mount.get("read_only") else {})}
        for mount in service.get("volumes", ())
    ]  # fmt: skip
    if service.get("secrets"):
        mounts.append({"name": "secrets", "mountPath": SECRETS, "readOnly": True})
    count = {"nvidia.com/gpu": str(found)} if (found := gpus(service)) else {}
    return {
        "name": name,
        "image": service["image"],
        "imagePullPolicy": "IfNotPresent",
        **({"command": list(entry)} if (entry := service.get("entrypoint")) else {}),
        **({"args": list(arguments)} if (arguments := service.get("command")) else {}),
        "env": [{"name": key, "value": str(value)} for key, value in service.get("environment", {}).items()],
        "volumeMounts": mounts,
        "resources": {"requests": {**requests, **count}, "limits": {**limits, **count}},
        "securityContext": {**HARDENED, **user(service)},
    }


def user(service: Mapping[str, Any]) -> Manifest:
    uid, _, gid = str(service["user"]).partition(":")
    return {"runAsUser": int(uid), "runAsGroup": int(gid)}


def volume(place: str) -> str:
    """The volume that is mounted there: "/labs/cache" is "cache"."""
    return place.strip("/").rpartition("/")[2]


def memory(size: str = "") -> Manifest:
    """A folder in memory."""
    return {"emptyDir": {"medium": "Memory", **({"sizeLimit": size} if size else {})}}


def size(text: str) -> str:
    """Compose's "256m" as Kubernetes has it."""
    return f"{text[:-1]}{text[-1].upper()}i"


def server_probes(asked: Mapping[str, Any]) -> Manifest:
    """Triton's own answers, and when it starts a real one of each model.

    Args:
        asked: a body for each path ("/v2/models/m/infer").
    """
    ready = {"httpGet": {"path": "/v2/health/ready", "port": "http"}}
    real = {"exec": {"command": ["python3", "-c", ANSWERS, json.dumps(asked)]}} if asked else ready
    return {
        "startupProbe": {**real, "periodSeconds": 10, "timeoutSeconds": 60, "failureThreshold": 180},
        "readinessProbe": {**ready, "periodSeconds": 5, "timeoutSeconds": 5, "failureThreshold": 2},
        "livenessProbe": {"httpGet": {"path": "/v2/health/live", "port": "http"},
                          "periodSeconds": 10, "timeoutSeconds": 10, "failureThreshold": 6},
    }  # fmt: skip


def ports() -> list[Manifest]:
    named = {"http": HTTP, "grpc": GRPC, "metrics": METRICS}
    return [{"name": name, "containerPort": port, "protocol": "TCP"} for name, port in named.items()]


def drained(service: Mapping[str, Any] | None = None, wait: int = DRAIN_S) -> tuple[Manifest, int]:
    """What a container does before it is asked to stop, and the seconds that it has in all."""
    grace = seconds(str(service["stop_grace_period"])) if service else 30
    return {"preStop": {"exec": {"command": ["sleep", str(wait)]}}}, wait + grace


def pod(spec: Manifest, user: Manifest, account: str, wait: int) -> Manifest:
    """A pod's spec: nobody's rights, nothing of the node, no token.

    Args:
        user: as :func:`user` gives it.
        wait: seconds from being asked to stop to being killed.
    """
    context = {"runAsNonRoot": True, "fsGroup": user["runAsGroup"], "seccompProfile": {"type": "RuntimeDefault"}}
    return {
        "serviceAccountName": account,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,  # they would add to the environment that Compose gives
        "securityContext": context,
        "terminationGracePeriodSeconds": wait,
        **spec,
    }


def template(labels: Mapping[str, str], spec: Manifest) -> Manifest:
    return {"metadata": {"labels": dict(labels)}, "spec": spec}


def spread(labels: Mapping[str, str]) -> list[Manifest]:
    """One replica to a node, as far as there are nodes."""
    return [{"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway",
             "labelSelector": {"matchLabels": dict(labels)}}]  # fmt: skip


def helper(
    name: str, image: str, command: Sequence[str], mounts: Mapping[str, str], env: Mapping[str, str], uid: Manifest,
    memory_limit: str = "8Gi", gpus: int = 0,
) -> Manifest:  # fmt: skip
    """A container that runs to its end before the others, or in a Job.

    Args:
        mounts: a volume for each place.
    """
    count = {"nvidia.com/gpu": str(gpus)} if gpus else {}
    return {
        "name": name,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": list(command),
        "env": [{"name": key, "value": value} for key, value in env.items()],
        "volumeMounts": [{"name": name, "mountPath": place} for place, name in mounts.items()],
        "resources": {
            "requests": {"cpu": "250m", "memory": "256Mi", **count},
            "limits": {"cpu": "4", "memory": memory_limit, **count},
        },
        "securityContext": {**HARDENED, **uid},
    }
