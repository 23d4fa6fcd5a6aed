"""Prometheus and Grafana beside a stack: containers of its Compose project, or Prometheus as a process."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from labctl import yamlfile
from labctl.errors import LabError
from labctl.listener import Listener
from labctl.runtimes import processes
from labctl.runtimes.actions import Action, Command
from labctl.runtimes.base import Record
from labctl.runtimes.compose_projects import NOBODY, Projects
from labctl.runtimes.marks import PROMETHEUS, ROOT, STACK
from labctl.workspace import Workspace, atomic_write

NO_GRAFANA = "none"  # as LABS_GRAFANA_IMAGE
MEMORY = "384MiB"
BOUNDS = ("--storage.tsdb.retention.time=6h", "--storage.tsdb.retention.size=192MB")


@dataclass(frozen=True)
class Observers:
    """Where they listen, as ``host:port``; Grafana's is "" where there is none. ``password`` is a file."""

    prometheus: str
    grafana: str = ""
    password: str = ""


def folder(workspace: Workspace, stack: str) -> Path:
    """What Prometheus has, and Grafana's password: gone with the stack."""
    return workspace.stack_dir(stack) / "observe"


def in_containers(workspace: Workspace, record: Record, ports: Sequence[int]) -> Action[Observers]:
    """Start both in the stack's project. A ``down`` takes them with it."""
    projects, password = Projects(workspace), folder(workspace, record.stack) / "grafana-password"
    services = ["prometheus"]
    if os.environ.get("LABS_GRAFANA_IMAGE") != NO_GRAFANA:
        services.append("grafana")
    env = {"LABS_PROMETHEUS_PORT": str(ports[0]), "LABS_GRAFANA_PORT": str(ports[1]),
           "LABS_GRAFANA_SECRET": str(password)}  # fmt: skip
    words = ("--profile", "observe", "up", "--detach", "--no-build", "--no-deps", *services)
    names = " and ".join(f"{projects.name(record.stack)}-{service}-1" for service in services)
    command = projects.command(record.stack, words, env, container=f"{names}, on 127.0.0.1:{ports[0]} and {ports[1]}")
    there = Observers(f"127.0.0.1:{ports[0]}", f"127.0.0.1:{ports[1]}" if "grafana" in services else "",
                      str(password))  # fmt: skip

    def do(listener: Listener) -> Observers:
        atomic_write(password, secrets.token_urlsafe(18), mode=0o600)
        if os.getuid() == 0:
            os.chown(password, NOBODY, NOBODY)
        code, _, tail = processes.run_tool(command, listener, listener.progress)
        if code:
            raise LabError(
                "Prometheus and Grafana cannot be started; the stack itself is up",
                processes.describe_exit(code),
                "LABS_PROMETHEUS_IMAGE and LABS_GRAFANA_IMAGE name other images; LABS_GRAFANA_IMAGE=none does without "
                "(docs/observe.md)",
                details=tail,
            )
        return there

    return Action(" and ".join(services), do, [command], [str(password)])


def as_process(workspace: Workspace, record: Record, port: int) -> Action[Observers]:
    """Start Prometheus, where this machine has it.

    Raises:
        LabError: it has not.
    """
    program = shutil.which(PROMETHEUS)
    if program is None:
        raise LabError(
            "Prometheus is not installed on this machine",
            "the stack goes without; Grafana comes in containers only",
            "apt-get install prometheus (Debian, Ubuntu), or --runtime compose",
        )
    data, address = folder(workspace, record.stack), f"127.0.0.1:{port}"
    config = data / "prometheus.yaml"
    argv = [program, f"--config.file={config}", f"--storage.tsdb.path={data / 'data'}", *BOUNDS,
            f"--web.listen-address={address}"]  # fmt: skip
    command = Command(argv, {"GOMEMLIMIT": MEMORY}, cwd=data)

    def do(listener: Listener) -> Observers:
        atomic_write(config, yaml.safe_dump(local_config(workspace, record), sort_keys=False))
        listener.command(command.argv)
        env = {**os.environ, **command.env, ROOT: str(workspace.root), STACK: record.stack}
        processes.spawn(argv, env, data / "prometheus.log", data, outlive=record.owner is None)
        return Observers(address)

    return Action(PROMETHEUS, do, [command], [f"{data}/"])


def local_config(workspace: Workspace, record: Record) -> dict[str, Any]:
    """``observe/prometheus.yaml`` with the stack's own addresses in place of names."""
    shipped = workspace.root / "observe"
    config: dict[str, Any] = yamlfile.parse((shipped / "prometheus.yaml").read_text(encoding="utf-8"))
    config["rule_files"] = [str(shipped / name) for name in config["rule_files"]]
    envoy = [record.endpoints.metrics] if record.balance else []
    targets = {"triton": record.asked["metrics"].split(","), "envoy": envoy}
    for job in config["scrape_configs"]:
        del job["dns_sd_configs"]
        job["static_configs"] = [{"targets": targets[job["job_name"]]}]
    return config
