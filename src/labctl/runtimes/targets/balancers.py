"""Envoy before the servers on Kubernetes, and how both are found."""

from __future__ import annotations

from pathlib import Path

from labctl.runtimes.arguments import GRPC, HTTP, METRICS
from labctl.runtimes.targets import fronts, pods
from labctl.runtimes.targets.deployment import Deployment, Manifest, manifest

PORTS = {"http": HTTP, "grpc": GRPC, "metrics": METRICS}


def balancer(deployment: Deployment) -> Manifest:
    """Envoy, twice: a front that is one is a front that fails."""
    labels = deployment.labels("envoy")
    service = {"image": deployment.envoy, "entrypoint": fronts.COMMAND, "tmpfs": ["/tmp"], "user": "65534:65534"}
    container = pods.container("envoy", service, {"cpu": "2", "memory": "2Gi"}, {"cpu": "250m", "memory": "256Mi"})
    page = {"httpGet": {"path": "/metrics", "port": "metrics"}}  # of Envoy itself, whatever the servers do
    lifecycle, grace = pods.drained()
    container |= {
        "ports": pods.ports(), "lifecycle": lifecycle,
        "startupProbe": {**page, "periodSeconds": 2, "timeoutSeconds": 5, "failureThreshold": 60},
        "readinessProbe": {**page, "periodSeconds": 5, "timeoutSeconds": 5, "failureThreshold": 2},
        "livenessProbe": {"tcpSocket": {"port": "http"}, "periodSeconds": 10, "timeoutSeconds": 5},
    }  # fmt: skip
    container["volumeMounts"].append({"name": "config", "mountPath": str(Path(fronts.CONFIG).parent), "readOnly": True})
    pod = {
        "topologySpreadConstraints": pods.spread(labels),
        "containers": [container],
        "volumes": [
            {"name": "tmp", **pods.memory("64Mi")},
            {"name": "config", "configMap": {"name": deployment.balancer}},
        ],
    }
    spec = {
        "replicas": 2,
        "selector": {"matchLabels": labels},
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
        "template": pods.template(labels, pods.pod(pod, pods.user(service), deployment.stack, grace)),
    }
    return manifest("apps/v1", "Deployment", deployment.balancer, labels, spec=spec)


def service(deployment: Deployment, part: str, name: str, headless: bool = False) -> Manifest:
    """How a part is found: under one address, or ``headless`` under the addresses of all its pods."""
    labels = deployment.labels(part)
    spec: Manifest = {"clusterIP": "None"} if headless else {"type": "ClusterIP"}
    spec |= {"selector": labels, "ports": [
        {"name": name, "port": port, "targetPort": name, "protocol": "TCP",
         **({"appProtocol": "kubernetes.io/h2c"} if name == "grpc" else {})}
        for name, port in PORTS.items()
    ]}  # fmt: skip
    return manifest("v1", "Service", name, labels, spec=spec)
