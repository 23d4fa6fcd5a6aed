"""The part of Envoy's configuration that spreads requests over several servers (docs/scale.md)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labctl.guard.parts import Address, typed

POLICIES = ("l4", "l7", "hash", "client")
SEQUENCE = "x-sequence-id"  # whose value decides, under ``hash``, which server gets a request
HOSTNAME = "replica-"  # and the number
READY = "/v2/health/ready"
CHECK_S, CHECK_PATIENCE_S = 0.25, 2.0  # a dead server is out after two refused connections
RETRIES = 2  # a request that ends its server must not end them all
RETRY_ON = "connect-failure,refused-stream,reset"  # Envoy retries none that has been answered, if only in part


@dataclass(frozen=True)
class Server:
    """One server behind the balancer. One that is ``draining`` gets nothing new and ends what it has."""

    number: int
    http: Address
    grpc: Address
    draining: bool = False


@dataclass(frozen=True)
class Balance:
    """How requests are spread, and over whom.

    Attributes:
        policy: of ``POLICIES``.
        folder: where the files lie that name the servers (:func:`assignments`); Envoy follows them.
        admin: the socket of Envoy's own interface, the caller's alone.
    """

    policy: str
    folder: Path
    admin: str


def route(policy: str) -> dict[str, Any]:
    """What a route says of retries and of affinity; without a policy, nothing."""
    if not policy:
        return {}
    previous = typed("envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate")
    retry = {
        "retry_on": RETRY_ON,
        "num_retries": RETRIES,
        "retry_host_predicate": [{"name": "envoy.retry_host_predicates.previous_hosts", "typed_config": previous}],
        "host_selection_retry_max_attempts": 5,
    }
    # The second header is the same in every request: those without the first all go to one server.
    first: dict[str, Any] = {"header": {"header_name": SEQUENCE}, "terminal": True}
    hashed = {"hash_policy": [first, {"header": {"header_name": ":scheme"}}]} if policy == "hash" else {}
    return {"retry_policy": retry, **hashed}


def cluster(name: str, balance: Balance) -> dict[str, Any]:
    """What a cluster of replicas has beside its protocol and its limits."""
    followed = {"path": str(balance.folder / f"{name}.json"), "watched_directory": {"path": str(balance.folder)}}
    return {
        "type": "EDS",
        "eds_cluster_config": {"eds_config": {"path_config_source": followed, "resource_api_version": "V3"}},
        "ignore_health_on_host_removal": True,  # one that is taken off the list gets nothing, however well it is
        **spreading(balance.policy),
    }


def spreading(policy: str) -> dict[str, Any]:
    """Which server a request goes to, and which servers are fit to get any."""
    hashed = {"lb_policy": "RING_HASH", "ring_hash_lb_config": {"minimum_ring_size": 1024}}
    return {
        **(hashed if policy == "hash" else {"lb_policy": "ROUND_ROBIN"}),
        "common_lb_config": {
            "healthy_panic_threshold": {"value": 0},  # no request for those that are known to be ill
            "update_merge_window": "0s",  # else workers hear up to a second late who is well again, and lose requests
        },
        "health_checks": [{
            "timeout": f"{CHECK_PATIENCE_S}s", "interval": f"{CHECK_S}s", "no_traffic_interval": f"{CHECK_S}s",
            "healthy_threshold": 1, "unhealthy_threshold": 2,
            "http_health_check": {"path": READY, "codec_client_type": "HTTP1"},
        }],
        # Only failures of the connection count: an error in an answer may be the fault of who asked.
        "outlier_detection": {
            "split_external_local_origin_errors": True,
            "consecutive_local_origin_failure": 3, "enforcing_consecutive_local_origin_failure": 100,
            "enforcing_consecutive_5xx": 0, "enforcing_consecutive_gateway_failure": 0,
            "enforcing_success_rate": 0, "enforcing_local_origin_success_rate": 0,
            "base_ejection_time": "5s", "max_ejection_percent": 50,
        },
        "track_cluster_stats": {"per_endpoint_stats": True},
    }  # fmt: skip


def assignments(servers: Iterable[Server]) -> Mapping[str, str]:
    """The files that name the servers to Envoy, by name; addresses in them are numbers, never names."""
    servers = list(servers)
    return {f"{name}.json": _assignment(name, servers) for name in ("http", "grpc")}


def _assignment(name: str, servers: Iterable[Server]) -> str:
    ends = [endpoint(getattr(server, name), server) for server in servers]
    resource = typed("envoy.config.endpoint.v3.ClusterLoadAssignment", cluster_name=name,
                     endpoints=[{"lb_endpoints": ends}])  # fmt: skip
    return json.dumps({"resources": [resource]}, indent=1)


def endpoint(address: Address, server: Server) -> dict[str, Any]:
    """A server as Envoy takes it: asked for its health over HTTP, and known by its number."""
    return {
        "endpoint": {
            "address": address.envoy(),
            "hostname": f"{HOSTNAME}{server.number}",
            "health_check_config": {"port_value": server.http.port},
        },
        "health_status": "DRAINING" if server.draining else "UNKNOWN",
        # Affinity goes by its number: its address may change.
        "metadata": {"filter_metadata": {"envoy.lb": {"hash_key": f"{HOSTNAME}{server.number}"}}},
    }
