"""Envoy's part of a request's trace: a span of its own between the client's and the server's."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from labctl.errors import LabError
from labctl.guard.parts import Address, typed

SCHEME, USUAL_PORT, PATH = "otlp", 4318, "/v1/traces"
CLUSTER = "traces"
MANAGER = "envoy.filters.network.http_connection_manager"


def receiver(asked: str) -> str:
    """The address of an OTLP/HTTP receiver ("" for none).

    Raises:
        LabError: it is none.
    """
    if not asked:
        return ""
    parts = urlsplit(asked)
    try:
        port = parts.port or USUAL_PORT
    except ValueError:
        port = 0
    if parts.scheme != SCHEME or not parts.hostname or not port or parts.username or parts.query:
        raise LabError(
            f"trace cannot be '{asked}'",
            "it is where an OTLP/HTTP receiver listens",
            f"--set trace=otlp://127.0.0.1:{USUAL_PORT}",
        )
    return f"http://{parts.hostname}:{port}{parts.path.rstrip('/') or PATH}"


def traced(config: dict[str, Any], url: str, service: str) -> dict[str, Any]:
    """The configuration with a span for each request, sent to the OTLP/HTTP receiver ``url``; "" is none.

    It continues a client's ``traceparent``, and the server gets Envoy's span as its parent.
    """
    if not url:
        return config
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or 80
    collector = {"http_uri": {"uri": url, "cluster": CLUSTER, "timeout": "2s"}}
    provider = typed("envoy.config.trace.v3.OpenTelemetryConfig", http_service=collector, service_name=service)
    resources = config["static_resources"]
    for listener in resources["listeners"]:
        for each in (one for chain in listener["filter_chains"] for one in chain["filters"] if one["name"] == MANAGER):
            if listener["name"] != "metrics":
                each["typed_config"]["generate_request_id"] = True  # by which Envoy remembers what is traced
                each["typed_config"]["tracing"] = {
                    "provider": {"name": "envoy.tracers.opentelemetry", "typed_config": provider},
                    "spawn_upstream_span": True,
                }
    resources["clusters"].append({
        "name": CLUSTER,
        "type": "STATIC" if host.replace(".", "").isdigit() else "STRICT_DNS",
        "connect_timeout": "2s",
        "load_assignment": {"cluster_name": CLUSTER, "endpoints": [
            {"lb_endpoints": [{"endpoint": {"address": Address(host, port).envoy()}}]}]},
    })  # fmt: skip
    return config
