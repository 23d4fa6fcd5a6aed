"""What keeps a stack on Kubernetes as it should be: who may talk to whom, how many must stay, when there are more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from labctl.runtimes.arguments import GRPC, HTTP, METRICS
from labctl.runtimes.targets.deployment import LEAST, MOST, Deployment, Manifest, manifest

WAITING = "2"  # requests that wait, per replica, before there is another: docs/kubernetes.md
SIGNAL = "triton_waiting_requests"  # as prometheus-adapter calls it

DNS = [{"protocol": protocol, "port": 53} for protocol in ("UDP", "TCP")]
PROMETHEUS = {"namespaceSelector": {}, "podSelector": {"matchLabels": {"app.kubernetes.io/name": "prometheus"}}}
# Who waits inside a model is its own to say; of a model that does not, Triton's queue is all there is.
QUERY = (
    "sum by (<<.GroupBy>>) (labs_waiting{<<.LabelMatchers>>} or on (namespace, pod, model) "
    "nv_inference_pending_request_count{<<.LabelMatchers>>})"
)


def manifests(deployment: Deployment) -> dict[str, Manifest]:
    # The Job may go to the model hub.
    out = [{"ports": [*DNS, *_tcp(443)]}]
    made = {"network-prepare.yaml": _policy(deployment, "prepare", "prepare", ingress=[], egress=out)}
    return {
        **(made if deployment.prepared else {}),
        "network-deny.yaml": _policy(deployment, "deny", None, ingress=[], egress=[]),
        "network-triton.yaml": _policy(
            deployment, "triton",
            "triton",
            ingress=[_from(_pods(deployment, "envoy"), HTTP, GRPC), _from(PROMETHEUS, METRICS)],
            egress=[],
        ),
        "network-envoy.yaml": _policy(
            deployment, "envoy",
            "envoy",
            ingress=[_from({"podSelector": {}}, HTTP, GRPC), _from(PROMETHEUS, METRICS)],
            egress=[{"to": [_pods(deployment, "triton")], "ports": _tcp(HTTP, GRPC)}, {"ports": DNS}],
        ),
        "triton-budget.yaml": _budget(deployment, deployment.server, "triton"),
        "envoy-budget.yaml": _budget(deployment, deployment.balancer, "envoy"),
        "autoscaler.yaml": autoscaler(deployment),
        "adapter.yaml": adapter(deployment),
    }  # fmt: skip


def autoscaler(deployment: Deployment) -> Manifest:
    """More replicas where requests wait; fewer only after five quiet minutes."""
    metric = {"name": SIGNAL}
    return manifest("autoscaling/v2", "HorizontalPodAutoscaler", deployment.server, spec={
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": deployment.kind, "name": deployment.server},
        "minReplicas": LEAST, "maxReplicas": MOST,
        "metrics": [{"type": "Pods", "pods": {"metric": metric,
                                              "target": {"type": "AverageValue", "averageValue": WAITING}}}],
        "behavior": {
            "scaleUp": {"stabilizationWindowSeconds": 15,
                        "policies": [{"type": "Pods", "value": 2, "periodSeconds": 60}]},
            "scaleDown": {"stabilizationWindowSeconds": 300,
                          "policies": [{"type": "Pods", "value": 1, "periodSeconds": 120}]},
        },
    })  # fmt: skip


def adapter(deployment: Deployment) -> Manifest:
    """prometheus-adapter's rule for the autoscaler's signal, to be mounted or merged into its own configuration."""
    import yaml

    rule = {
        "seriesQuery": 'nv_inference_pending_request_count{namespace!="",pod!=""}',
        "resources": {"overrides": {"namespace": {"resource": "namespace"}, "pod": {"resource": "pod"}}},
        "name": {"as": SIGNAL},
        "metricsQuery": QUERY,
    }
    text = yaml.safe_dump({"rules": [rule]}, sort_keys=False, width=1000)
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": f"{deployment.stack}-adapter"},
            "data": {"config.yaml": text}}  # fmt: skip


def monitor(deployment: Deployment) -> Manifest:
    """Prometheus Operator's own resource: which Services are scraped, every replica and Envoy."""
    return manifest("monitoring.coreos.com/v1", "ServiceMonitor", deployment.stack, spec={
        "selector": {"matchLabels": deployment.everything},
        "endpoints": [{"port": "metrics", "path": "/metrics", "interval": "5s"}],
    })  # fmt: skip


def _policy(deployment: Deployment, name: str, part: str | None, **rules: Any) -> Manifest:
    chosen = deployment.labels(part) if part else deployment.everything
    return manifest("networking.k8s.io/v1", "NetworkPolicy", f"{deployment.stack}-{name}", spec={
        "podSelector": {"matchLabels": chosen}, "policyTypes": ["Ingress", "Egress"], **rules})  # fmt: skip


def _from(peer: Mapping[str, Any], *ports: int) -> Manifest:
    return {"from": [dict(peer)], "ports": _tcp(*ports)}


def _tcp(*ports: int) -> list[Manifest]:
    return [{"protocol": "TCP", "port": port} for port in ports]


def _pods(deployment: Deployment, part: str) -> Manifest:
    return {"podSelector": {"matchLabels": deployment.labels(part)}}


def _budget(deployment: Deployment, name: str, part: str) -> Manifest:
    return manifest("policy/v1", "PodDisruptionBudget", name, spec={
        "maxUnavailable": 1, "selector": {"matchLabels": deployment.labels(part)}})  # fmt: skip
