"""The files of a stack for Docker Swarm: ``swarm.yaml``, filled, and what the stack itself says."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from labctl.deploy.stack import CONFIG, Server, dump, fill, parse
from labctl.runtimes.envoy import config as envoy_config
from labctl.triton.arguments import GRPC, HTTP, METRICS

FILE = "compose.swarm.yaml"
DRAIN_S = 5  # swarm.yaml's own
UNITS = {"k": 2**10, "m": 2**20, "g": 2**30}
# As in compose.yaml and compose.gpu.yaml.
ULIMITS = {"memlock": 8388608, "nofile": "", "fsize": 67108864}
GPU_ULIMITS = {"memlock": -1, "nofile": 65535, "fsize": -1}
HEADER = """\
# Rendered by labctl from the manifest of {stack}. Render again rather than edit.
#   docker stack deploy --resolve-image never -c compose.swarm.yaml {stack}        (docs/operate/swarm.md)
"""


def write(
    stack: str,
    server: Server,
    envoy_image: str,
    config: Mapping[str, Any],
    guard: bool,
    repository: Path,
    mounts: Mapping[str, Path],
    folder: Path,
) -> None:
    """Write ``compose.swarm.yaml``, Envoy's configuration and the repository into an empty folder.

    Args:
        config: Envoy's, and ``guard`` whether that has a judge.
        mounts: this machine's folders: "models" and "cache".
    """
    shutil.copytree(repository, folder / "repository", symlinks=True)
    (folder / "envoy.json").write_text(f"{json.dumps(config, indent=1)}\n", encoding="utf-8")
    usual = {"memory": "8G", **mounts, "http_port": HTTP, "grpc_port": GRPC, "metrics_port": METRICS}
    values = {
        "stack": stack,
        "image": server.image,
        "envoy_image": envoy_image,
        "closed": server.closed,
        "entry": " ".join(server.entrypoint) or "serve",
        "grace": f"{DRAIN_S + server.exit_s}s",
        "shm": int(server.shm[:-1]) * UNITS[server.shm[-1].lower()],
        "gpus": server.gpus,
        **(GPU_ULIMITS if server.gpus else ULIMITS),
        **{name: f"${{LABS_{name.upper()}:-{value}}}" for name, value in usual.items()},
    }
    document = parse(fill("swarm.yaml", values))
    triton = document["services"]["triton"]
    triton["command"] = [word.replace("$", "$$") for word in server.arguments]
    triton["environment"] |= {key: value.replace("$", "$$") for key, value in server.environment.items()}
    if not server.gpus:
        del triton["deploy"]["resources"]["reservations"]["generic_resources"]
    if not guard:
        document["services"]["envoy"] |= {"entrypoint": ["envoy"], "command": envoy_config.arguments(CONFIG)}
    (folder / FILE).write_text(HEADER.format(stack=stack) + dump(document), encoding="utf-8")
