"""``labctl up STACK --observe``: Prometheus, and in containers Grafana, beside a stack that is up."""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from labctl.listener import Listener
from labctl.options import LOOPBACK, Options
from labctl.runtimes import processes
from labctl.runtimes.base import Runtime
from labctl.runtimes.compose_commands import NOBODY, Projects, compose_up
from labctl.runtimes.leftovers import PROMETHEUS, ROOT, STACK
from labctl.runtimes.processes import Command
from labctl.runtimes.record import Record
from labctl.stack.ports import free_ports, require_free
from labctl.stack.session import Session
from labctl.workspace import Workspace
from labkit.disk import atomic_write
from labkit.errors import LabError
from labkit.strict_yaml import parse_yaml

Begin = Callable[[Listener], Sequence[str]]  # starts them, and gives what to say
AGAIN = "labctl up STACK --observe (with --ports auto on free ports)"
USUAL = {"Prometheus": 9090, "Grafana": 3000}
NO_GRAFANA = "none"  # as LABS_GRAFANA_IMAGE
MEMORY = "384MiB"
FAILED = "Prometheus and Grafana cannot be started; the stack itself is up"
FAILED_REMEDY = (
    "LABS_PROMETHEUS_IMAGE and LABS_GRAFANA_IMAGE name other images; LABS_GRAFANA_IMAGE=none does without "
    "(docs/operate/observe.md)"
)
BOUNDS = ("--storage.tsdb.retention.time=6h", "--storage.tsdb.retention.size=192MB")


def start_monitoring(session: Session, runtime: Runtime, record: Record, options: Options) -> None:
    """Start them, and say where they are.

    Raises LabError: in containers they cannot be started, or their ports are taken; the stack stays up.
    """
    numbers = _ports(runtime.name, options)
    if options.ports != "auto":
        require_free(numbers, LOOPBACK, session.running(), f"free it, then {AGAIN}")
    try:
        begin = (in_containers if runtime.name == "compose" else as_process)(session.workspace, record, numbers)
    except LabError as missing:
        session.listener.note(f"{missing.what}: {missing.why}. {missing.remedy}")
        return
    for sentence in begin(session.listener):
        session.listener.note(sentence)


def _ports(runtime: str, options: Options) -> dict[str, int]:
    """The port of each program that is started: Grafana comes in containers alone, and not where it is left out."""
    grafana = runtime == "compose" and os.environ.get("LABS_GRAFANA_IMAGE") != NO_GRAFANA
    names = [*USUAL] if grafana else ["Prometheus"]
    picked = free_ports(LOOPBACK, len(names)) if options.ports == "auto" else [USUAL[name] for name in names]
    return dict(zip(names, picked, strict=True))


def in_containers(workspace: Workspace, record: Record, ports: Mapping[str, int]) -> Begin:
    """Start both in the stack's project; no Grafana without a port. ``down`` takes them with it. Gives what to say."""
    projects, password = Projects(workspace), workspace.folder(record.stack).observe / "grafana-password"
    services = [name.lower() for name in ports]
    added = {f"STACK_{name.upper()}_PORT": str(port) for name, port in ports.items()}
    places = {name: f"{LOOPBACK}:{port}" for name, port in ports.items()}
    command = compose_up(projects, record, services, pull=None)
    profile = "observe" if "Grafana" in ports else ""  # which would have both

    def write() -> None:
        atomic_write(password, secrets.token_urlsafe(18), mode=0o600)
        if os.getuid() == 0:
            os.chown(password, NOBODY, NOBODY)
        projects.add(record.stack, added, profile)

    def begin(listener: Listener) -> Sequence[str]:
        write()
        processes.run_to_end(command, listener, FAILED, FAILED_REMEDY, code="observe-not-started")
        access = {"Grafana": f", user admin, password in {password}"}
        return [f"{name}: http://{place}{access.get(name, '')}" for name, place in places.items()]

    return begin


def as_process(workspace: Workspace, record: Record, ports: Mapping[str, int]) -> Begin:
    """Start Prometheus, where this machine has it, and give what to say. Raises LabError where it has not."""
    program = shutil.which(PROMETHEUS)
    if program is None:
        raise LabError(
            "Prometheus is not installed on this machine",
            "the stack goes without; Grafana comes in containers only",
            "apt-get install prometheus (Debian, Ubuntu), or --runtime compose",
            code="prometheus-missing",
        )
    data, address = workspace.folder(record.stack).observe, f"{LOOPBACK}:{ports['Prometheus']}"
    config = data / "prometheus.yaml"
    arguments = [f"--config.file={config}", f"--storage.tsdb.path={data / 'data'}", f"--web.listen-address={address}"]
    command = Command([program, *arguments, *BOUNDS], {"GOMEMLIMIT": MEMORY}, cwd=data)

    def begin(listener: Listener) -> Sequence[str]:
        listener.command(command.argv, command.env)
        data.mkdir(parents=True, exist_ok=True)
        follow_servers(workspace, record)
        atomic_write(config, yaml.safe_dump(local_config(workspace, record), sort_keys=False))
        env = {**os.environ, **command.env, ROOT: str(workspace.root), STACK: record.stack}
        processes.spawn(command.argv, env, data / "prometheus.log", data, outlive=record.owner is None)
        return [f"Prometheus: http://{address}"]

    return begin


def local_config(workspace: Workspace, record: Record) -> dict[str, Any]:
    """``observe/prometheus.yaml`` with files of the stack's own addresses in place of names."""
    shipped = workspace.observe
    config: dict[str, Any] = parse_yaml((shipped / "prometheus.yaml").read_text(encoding="utf-8"))
    config["rule_files"] = [str(shipped / name) for name in config["rule_files"]]
    for job in config["scrape_configs"]:
        (names,) = job.pop("dns_sd_configs")
        files = [str(_targets(workspace, record.stack, job["job_name"]))]
        job["file_sd_configs"] = [{"files": files, "refresh_interval": names["refresh_interval"]}]
    return config


def follow_servers(workspace: Workspace, record: Record) -> None:
    """Have the Prometheus of a local stack scrape the servers that the record names now. Without one, do nothing."""
    if not workspace.folder(record.stack).observe.is_dir() or record.runtime != "local":
        return
    envoy = [record.endpoints.metrics] if record.balance else []
    for job, targets in {"triton": record.scrape_endpoints["metrics"].split(","), "envoy": envoy}.items():
        atomic_write(_targets(workspace, record.stack, job), json.dumps([{"targets": targets}]))


def _targets(workspace: Workspace, stack: str, job: str) -> Path:
    return workspace.folder(stack).observe / f"{job}.json"
