"""A stack for Docker Swarm: compose.yaml's services without what Swarm refuses, and with what it needs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from labctl import yamlfile
from labctl.runtimes.arguments import GRPC, HTTP, METRICS
from labctl.runtimes.targets import fronts
from labctl.runtimes.targets.composed import gpus, scratch, seconds

FILE = "compose.swarm.yaml"
REPLICAS = 2
DRAIN_S = 5  # a replica is out of DNS when it is asked to stop: Envoy has noticed after that
KEPT = ("image", "command", "environment", "user", "init", "read_only", "cap_drop", "ulimits")
HEALTH = ("test", "interval", "timeout", "retries", "start_period")
# Triton takes nothing new once it was asked to stop; whoever still comes here meanwhile is served.
DRAINED = """serve "$$@" & child=$$!; trap 'sleep {wait}; kill -TERM $$child' TERM; wait $$child; wait $$child"""
HEADER = """\
# Rendered by labctl from the manifest of {stack} and from compose.yaml. Render again rather than edit.
#   docker stack deploy --resolve-image never -c compose.swarm.yaml {stack}        (docs/swarm.md)
"""


def write(
    stack: str, service: Mapping[str, Any], envoy: str, front: Mapping[str, Any], repository: Path, folder: Path
) -> None:  # fmt: skip
    """Write ``compose.swarm.yaml``, Envoy's configuration and the repository into an empty folder.

    Args:
        service: the server's Compose service.
        envoy: Envoy's image; ``front`` is its configuration.
        repository: rendered, on this machine.
    """
    shutil.copytree(repository, folder / "repository", symlinks=True)
    (folder / "envoy.json").write_text(f"{json.dumps(front, indent=1)}\n", encoding="utf-8")
    document = {
        "services": {"triton": server(stack, service), "envoy": balancer(envoy)},
        "configs": {"envoy": {"file": "./envoy.json"}},
        "secrets": {"triton": {"external": True, "name": f"{stack}-triton"}},
        "networks": {"default": {"driver": "overlay", "attachable": True}},
    }
    text = HEADER.format(stack=stack) + yaml.dump(document, Dumper=yamlfile.Dumper, sort_keys=False, width=120)
    (folder / FILE).write_text(text, encoding="utf-8")


def server(stack: str, service: Mapping[str, Any]) -> dict[str, Any]:
    entry = " ".join(service.get("entrypoint") or ["serve"])
    drained = DRAINED.format(wait=DRAIN_S).replace("serve", entry, 1)
    grace = DRAIN_S + seconds(str(service["stop_grace_period"]))
    reserved: dict[str, Any] = {"cpus": "0.5", "memory": "1G"}
    if count := gpus(service):
        reserved["generic_resources"] = [{"discrete_resource_spec": {"kind": "NVIDIA-GPU", "value": count}}]
    return {
        **_kept(service),
        "entrypoint": ["sh", "-c", drained, "serve"],
        "volumes": [
            *(_memory(place) for place in scratch(service)),
            _memory("/dev/shm", str(service["shm_size"])),
            *(_mount(stack, mount) for mount in service["volumes"]),
        ],
        "secrets": [{"source": "triton", "target": "triton", "uid": "65534", "mode": 0o400}],
        "stop_grace_period": f"{grace}s",
        # While its models load a replica is "starting", and not in DNS.
        "healthcheck": {key: service["healthcheck"][key] for key in HEALTH},
        "deploy": {
            "replicas": REPLICAS,
            "endpoint_mode": "dnsrr",  # Envoy wants to know each replica, not one address for all
            "placement": {"preferences": [{"spread": "node.id"}]},
            "restart_policy": {"condition": "any", "delay": "2s"},
            "update_config": _one_by_one("start-first", failure_action="rollback"),
            "rollback_config": _one_by_one("start-first"),
            "resources": {"limits": {"pids": int(service["pids_limit"])}, "reservations": reserved},
        },
    }


def balancer(image: str) -> dict[str, Any]:
    """Envoy on ports of its node: Swarm's ingress mesh would choose a replica of Envoy once more."""
    page = f"import urllib.request as u; u.urlopen('http://127.0.0.1:{METRICS}/metrics', timeout=3)"
    ports = {"HTTP": HTTP, "GRPC": GRPC, "METRICS": METRICS}
    return {
        "image": image,
        "entrypoint": fronts.COMMAND[:1],
        "command": fronts.COMMAND[1:],
        "user": "65534:65534",
        "init": True,
        "read_only": True,
        "cap_drop": ["ALL"],
        "volumes": [_memory("/tmp")],
        "configs": [{"source": "envoy", "target": fronts.CONFIG}],
        "ports": [
            {"target": port, "published": f"${{LABS_{name}_PORT:-{port}}}", "mode": "host"}
            for name, port in ports.items()
        ],
        "healthcheck": {"test": ["CMD", "python", "-c", page], "interval": "5s", "timeout": "5s", "retries": 3},
        "deploy": {
            "replicas": 1,
            "endpoint_mode": "dnsrr",
            "restart_policy": {"condition": "any", "delay": "1s"},
            "update_config": _one_by_one("stop-first", failure_action="rollback"),  # two cannot have one port
            "resources": {"limits": {"memory": "2G", "pids": 512}},
        },
    }


def _kept(service: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: service[key] for key in KEPT if service.get(key) not in (None, [])}
    dollars = {key: str(value).replace("$", "$$") for key, value in service["environment"].items()}
    return {**kept, "command": [word.replace("$", "$$") for word in service["command"]], "environment": dollars}


def _mount(stack: str, mount: Mapping[str, Any]) -> dict[str, Any]:
    """What a replica sees of this machine's folders; every node must have them at the same place."""
    target = str(mount["target"])
    if target == "/labs/run":  # each replica writes its own
        return _memory(target)
    sources = {"/models": "./repository", "/labs/models": "${LABS_MODELS:-%s}", "/labs/cache": "${LABS_CACHE:-%s}"}
    source = sources[target].replace("%s", str(mount["source"]))
    return {"type": "bind", "source": source, "target": target, "read_only": True}


def _memory(target: str, size: str = "256m") -> dict[str, Any]:
    """A folder in memory: the file's ``tmpfs`` and ``shm_size`` are none of Swarm's."""
    units = {"k": 2**10, "m": 2**20, "g": 2**30}
    return {"type": "tmpfs", "target": target, "tmpfs": {"size": int(size[:-1]) * units[size[-1].lower()]}}


def _one_by_one(order: str, **more: Any) -> dict[str, Any]:
    return {"parallelism": 1, "order": order, "delay": "2s", "monitor": "5s", **more}
