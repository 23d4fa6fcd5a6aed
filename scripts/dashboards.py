"""Write ``docker/observe/dashboards/``: Grafana's dashboards from the tables below.

python scripts/dashboards.py
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[1] / "docker" / "observe" / "dashboards"
SOURCE = {"type": "prometheus", "uid": "labs-prometheus"}
OURS, REPLICA = '{model=~"$model"}', '{model=~"$model",instance=~"$replica"}'
CLUSTERS = '{envoy_cluster_name=~"http|grpc"}'
WIDTH, HEIGHT = 24, 8
SECONDS, TOKENS, SHARE, NUMBER = "s", "short", "percentunit", "short"


@dataclass(frozen=True)
class Panel:
    """Queries by their legend; ``width`` in Grafana's 24 columns."""

    title: str
    queries: dict[str, str]
    unit: str = NUMBER
    kind: str = "timeseries"
    width: int = 8
    description: str = ""


def rate(metric: str, by: str = "model") -> str:
    return f"sum by ({by}) (rate({metric}{REPLICA}[$__rate_interval]))"


def per_request(part: str) -> str:
    """Mean seconds of a part of Triton's own times ("queue", "compute_infer")."""
    return f"{rate(f'nv_inference_{part}_duration_us')} / {rate('nv_inference_request_success')} / 1e6"


def quantiles(metric: str) -> dict[str, str]:
    return {
        f"p{q} {{{{model}}}}": f"histogram_quantile(0.{q}, {rate(f'{metric}_bucket', 'le, model')})"
        for q in (50, 90, 99)
    }


def mean(metric: str, by: str = "model") -> str:
    return f"{rate(f'{metric}_sum', by)} / {rate(f'{metric}_count', by)}"


SCHEDULER = [
    Panel(
        "Batch heat map",
        {"{{le}}": f"sum by (le) (increase(labs_batch_size_bucket{REPLICA}[$__rate_interval]))"},
        kind="heatmap",
        description="How many requests shared a step.",
    ),
    Panel(
        "Waiting against running",
        {
            "waiting {{model}}": f"sum by (model) (labs:waiting{REPLICA})",
            "running {{model}}": f"sum by (model) (labs:running{REPLICA})",
            "slots {{model}}": f"sum by (model) (labs_slots{REPLICA})",
        },
    ),
    Panel("Tokens a second", {"{{model}}": rate("labs_tokens_total")}, TOKENS),
    Panel("Time to first token", quantiles("labs_time_to_first_token_seconds"), SECONDS),
    Panel("Inter-token latency", quantiles("labs_inter_token_latency_seconds"), SECONDS),
    Panel("Tokens in a step", {"{{phase}} {{model}}": mean("labs_step_tokens", "phase, model")}, TOKENS),
    Panel(
        "KV cache",
        {
            "blocks {{model}}": f"sum by (model) (labs:kv_blocks{REPLICA})",
            "used {{model}}": f"sum by (model) (labs:kv_blocks_used{REPLICA})",
        },
    ),
    Panel(
        "Evictions and admissions a second",
        {"evicted {{model}}": rate("labs_preemptions_total"), "admitted {{model}}": rate("labs_admissions_total")},
    ),
    Panel(
        "Queue and compute, by Triton",
        {"queue {{model}}": per_request("queue"), "compute {{model}}": per_request("compute_infer")},
        SECONDS,
    ),
]
REPLICAS = [
    Panel(
        "Share of traffic",
        {
            "{{instance}}": f"{rate('nv_inference_request_success', 'instance')} / ignoring (instance) group_left () "
            f"sum(rate(nv_inference_request_success{REPLICA}[$__rate_interval]))"
        },
        SHARE,
        width=12,
    ),
    Panel("Waiting, by replica", {"{{instance}}": f"sum by (instance) (labs:waiting{REPLICA})"}, width=12),
    Panel(
        "Requests through Envoy",
        {
            "{{envoy_cluster_name}}": "sum by (envoy_cluster_name) "
            f"(rate(envoy_cluster_upstream_rq_total{CLUSTERS}[$__rate_interval]))"
        },
        width=12,
    ),
    Panel(
        "Servers that Envoy finds healthy",
        {"{{envoy_cluster_name}}": f"min by (envoy_cluster_name) (envoy_cluster_membership_healthy{CLUSTERS})"},
        width=12,
    ),
]
BOTH = [
    Panel(
        "Triton says: requests that wait",
        {"{{model}}": f"sum by (model) (nv_inference_pending_request_count{OURS})"},
        width=12,
        description="A model with its own loop takes a request over at once: to Triton it waits no longer.",
    ),
    Panel("What happened: requests that wait", {"{{model}}": f"sum by (model) (labs:waiting{OURS})"}, width=12),
    Panel(
        "Triton says: mean batch",
        {"{{model}}": f"{rate('nv_inference_count')} / {rate('nv_inference_exec_count')}"},
        width=12,
        description="Executions are hand-overs, not steps.",
    ),
    Panel("What happened: mean batch of a step", {"{{model}}": mean("labs_batch_size")}, width=12),
    Panel(
        "Triton says: mean request",
        {"{{model}}": f"{rate('nv_inference_request_duration_us')} / {rate('nv_inference_request_success')} / 1e6"},
        SECONDS,
        width=12,
        description="A decoupled request is done for Triton when execute returns.",
    ),
    Panel(
        "What happened: mean time to first token",
        {"{{model}}": mean("labs_time_to_first_token_seconds")},
        SECONDS,
        width=12,
    ),
]
DASHBOARDS = {
    "scheduler": ("The scheduler", SCHEDULER),
    "replicas": ("Replicas", REPLICAS),
    "triton-says": ("Triton says, what happened", BOTH),
}


def dashboard(name: str) -> dict[str, Any]:
    title, panels = DASHBOARDS[name]
    placed, left, top = [], 0, 0
    for number, panel in enumerate(panels, 1):
        if left + panel.width > WIDTH:
            left, top = 0, top + HEIGHT
        placed.append(_panel(panel, number, left, top))
        left += panel.width
    return {
        "uid": f"labs-{name}",
        "title": title,
        "tags": ["triton-labs"],
        "schemaVersion": 39,
        "editable": False,
        "refresh": "5s",
        "time": {"from": "now-15m", "to": "now"},
        "timezone": "browser",
        "templating": {"list": [_variable("model", "model"), _variable("replica", "instance")]},
        "annotations": {"list": []},
        "panels": placed,
    }


def _panel(panel: Panel, number: int, left: int, top: int) -> dict[str, Any]:
    heat_map = panel.kind == "heatmap"
    options: dict[str, Any] = {"legend": {"showLegend": True, "displayMode": "list", "placement": "bottom"}}
    if heat_map:
        options = {"calculate": False, "yAxis": {"unit": "short"}}
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": SOURCE,
        "gridPos": {"x": left, "y": top, "w": panel.width, "h": HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": options,
        "targets": [
            {
                "refId": chr(ord("A") + place),
                "datasource": SOURCE,
                "expr": expression,
                "legendFormat": legend,
                **({"format": "heatmap"} if heat_map else {}),
            }
            for place, (legend, expression) in enumerate(panel.queries.items())
        ],
    }


def _variable(name: str, label: str) -> dict[str, Any]:
    query = f"label_values(nv_inference_request_success, {label})"
    return {
        "name": name,
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": query, "refId": name},
        "definition": query,
        "includeAll": True,
        "allValue": ".*",
        "multi": False,
        "refresh": 2,
        "current": {"text": "All", "value": "$__all"},
    }


def text(name: str) -> str:
    """A dashboard's file."""
    return json.dumps(dashboard(name), indent=1) + "\n"


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in DASHBOARDS:
        (FOLDER / f"{name}.json").write_text(text(name), encoding="utf-8")
