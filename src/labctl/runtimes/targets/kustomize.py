"""The files of a stack for Kubernetes: a Kustomize base, and an overlay for each profile."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from labctl import yamlfile
from labctl.errors import LabError
from labctl.runtimes.targets import balancers, fronts, keeping, servers
from labctl.runtimes.targets.deployment import Deployment, Manifest, files, key, manifest

MOST_BYTES = 2**20  # of a ConfigMap
HEADER = "# Rendered by labctl from the manifest of {stack} and from compose.yaml. Render again rather than edit.\n"


def write(deployment: Deployment, folder: Path, service_monitor: bool = False) -> None:
    """Write base and overlays into an empty folder.

    Raises:
        LabError: a rendered repository is larger than a ConfigMap may be.
    """
    base = folder / "base"
    whole = {
        "serviceaccount.yaml": manifest("v1", "ServiceAccount", deployment.stack, automountServiceAccountToken=False),
        "triton.yaml": servers.server(deployment, "cpu"),
        "triton-service.yaml": balancers.service(deployment, "triton", deployment.server, headless=True),
        "envoy.yaml": balancers.balancer(deployment),
        "envoy-service.yaml": balancers.service(deployment, "envoy", deployment.stack),
        **keeping.manifests(deployment),
    }
    if deployment.prepared:
        whole |= {"cache.yaml": servers.cache(deployment), "prepare.yaml": servers.job(deployment, "cpu")}
    if service_monitor:
        whole["servicemonitor.yaml"] = keeping.monitor(deployment)
    for name, document in whole.items():
        _dump(deployment, base / name, document)
    envoy = json.dumps(fronts.over_names(deployment.policy, deployment.names, deployment.trace), indent=1)
    (base / "envoy.json").write_text(f"{envoy}\n", encoding="utf-8")
    _dump(deployment, base / "kustomization.yaml", {
        "apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization",
        "resources": sorted(whole),
        "labels": [{"pairs": deployment.everything}],
        "configMapGenerator": [{"name": deployment.balancer, "files": ["envoy.json"]},
                               _repository(deployment, "cpu", base)],
    })  # fmt: skip
    for profile in deployment.serving:
        _overlay(deployment, profile, folder / "overlays" / profile)


def _overlay(deployment: Deployment, profile: str, folder: Path) -> None:
    """A profile over the base, which is the cpu profile's: another pod, and another repository."""
    document: Manifest = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "resources": ["../../base"],
    }  # fmt: skip
    if profile != "cpu":
        patches = {"triton-patch.yaml": (deployment.kind, deployment.server, servers.server_pod(deployment, profile))}
        if deployment.prepared:
            name, pod = f"{deployment.stack}-prepare", servers.job_pod(deployment, profile)
            patches["prepare-patch.yaml"] = ("Job", name, pod)
        for name, (_, _, spec) in patches.items():
            _dump(deployment, folder / name, [{"op": "replace", "path": "/spec/template/spec", "value": spec}])
        document["patches"] = [{"path": file, "target": {"kind": kind, "name": name}}
                               for file, (kind, name, _) in patches.items()]  # fmt: skip
        if deployment.serving[profile].repository:
            generated = _repository(deployment, profile, folder)
            document["configMapGenerator"] = [{**generated, "behavior": "replace"}]
    _dump(deployment, folder / "kustomization.yaml", document)


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
    for name in names:
        target = folder / "repository" / _shown(name)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / name, target)
    listed = [f"{key(name)}=repository/{_shown(name)}" for name in names]
    return {"name": f"{deployment.stack}-repository", "files": listed}


def _shown(name: str) -> str:
    """What is called .yaml below these folders is a manifest, or it has another name."""
    return f"{name}.txt" if name.endswith((".yaml", ".yml")) else name


class _Dumper(yamlfile.Dumper):  # type: ignore[misc]
    """No anchors, and scripts as blocks."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


_Dumper.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None),
)


def _dump(deployment: Deployment, path: Path, document: Mapping[str, Any] | list[Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=120)
    path.write_text(HEADER.format(stack=deployment.stack) + text, encoding="utf-8")
