"""Gateway API with its Inference Extension before a stack's servers: a pool, a route, and the endpoint picker."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from labctl.deploy.door import extend, write
from labctl.deploy.kustomize import HEADER
from labctl.deploy.stack import Deployment, fill
from labctl.plan import Plan

PICKER = "picker.yaml"
LABEL = "/spec/template/metadata/labels/inference.networking.k8s.io~1engine-type"  # of a pod, as a JSON pointer
# Engines whose metrics the picker knows; all others have our models' (gateway/picker-config.yaml).
ENGINES = {"tensorrt-llm": "triton-tensorrt-llm", "llmapi": "triton-tensorrt-llm", "vllm": "vllm"}


def add(deployment: Deployment, plans: Mapping[str, Plan], folder: Path) -> None:
    """Add it to the files for Kubernetes in ``folder``, if a gateway is named."""
    if not deployment.cluster.gateway:
        return
    names = deployment.read("gateway/kustomization.yaml")["resources"]
    for name in names:
        path = folder / "base" / name
        if name == PICKER:  # the only one with fields that a cluster may lack
            write(deployment, path, deployment.read(f"gateway/{name}"))
        else:
            text = fill(f"kubernetes/gateway/{name}", deployment.values)
            path.write_text(HEADER.format(stack=deployment.stack) + text, encoding="utf-8")
    extend(deployment, folder / "base", "resources", names)
    target = {"kind": deployment.values["kind"], "name": f"{deployment.stack}-triton"}
    for profile, plan in plans.items():
        if profile == "gpu" and (engine := ENGINES.get(str(plan.settings.get("engine")))):
            patch = folder / "overlays" / profile / "engine-type-patch.yaml"
            write(deployment, patch, [{"op": "add", "path": LABEL, "value": engine}])
            extend(deployment, patch.parent, "patches", [{"path": patch.name, "target": target}])
