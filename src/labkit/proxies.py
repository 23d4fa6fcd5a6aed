"""Proxies that the environment names: never for this machine's own loopback, and for other hosts as curl does.

gRPC reads ``grpc_proxy``, ``https_proxy`` and ``http_proxy`` and sends loopback through them, unless ``no_proxy`` has
the very address; it knows neither ``NO_PROXY`` nor ``*`` (src/core/handshaker/http_connect/http_proxy_mapper.cc).
urllib, httpx and requests send loopback through ``http_proxy`` too.
"""

from __future__ import annotations

import ipaddress
import os
import re
import urllib.request
from collections.abc import MutableMapping

LOOPBACK = ("localhost", "127.0.0.1", "::1")
USED_BY_GRPC = ("grpc_proxy", "https_proxy", "http_proxy")  # the first that is there
_PROXIES = re.compile(r"(grpc|https?|all)_proxy", re.IGNORECASE)


def spare_loopback(env: MutableMapping[str, str] = os.environ) -> None:
    """Name loopback among the hosts without a proxy, for this process's libraries and those of its children."""
    if not any(_PROXIES.fullmatch(name) for name in env):
        return
    listed = env.get("no_proxy") or env.get("NO_PROXY") or ""
    if listed.strip() == "*":
        env.setdefault("no_proxy", "*")
        env["grpc_proxy"] = ""  # which gRPC takes for none
        return
    env["no_proxy"] = env["NO_PROXY"] = _with_loopback(listed)
    if "no_grpc_proxy" in env:  # then gRPC does not read the other
        env["no_grpc_proxy"] = _with_loopback(env["no_grpc_proxy"])


def _with_loopback(listed: str) -> str:
    return ",".join(dict.fromkeys([*re.split(r"[,\s]+", listed.strip(", \t")), *LOOPBACK])).strip(",")


def for_grpc(endpoint: str) -> str:
    """The variable that names the proxy of a gRPC endpoint; "" if there is none, or it is not to be asked.

    Args:
        endpoint: ``host:port``, or addresses in gRPC's own words. Several have none: gRPC would ask the proxy for a
            host whose name is the whole list.
    """
    scheme, _, rest = endpoint.rpartition(":///") if ":///" in endpoint else ("", "", endpoint)
    if not scheme and endpoint.startswith(("ipv4:", "ipv6:", "unix:")):
        scheme, _, rest = endpoint.partition(":")
    if scheme.startswith("unix") or "," in rest:
        return ""
    host = _host(rest)
    if is_loopback(host) or urllib.request.proxy_bypass(host):
        return ""
    return next((name for name in USED_BY_GRPC if name in os.environ), "")


def is_loopback(host: str) -> bool:
    """Whether a host is this machine, whatever it is called from outside; to connect to 0.0.0.0 is to connect to it."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host.lower().rstrip(".").rpartition(".")[2] == "localhost"
    mapped = getattr(address, "ipv4_mapped", None) or address
    return bool(mapped.is_loopback or mapped.is_unspecified)


def _host(place: str) -> str:
    """The host of ``host:port``, ``[::1]:port``, or of an address without a port."""
    if place.startswith("["):
        return place[1:].partition("]")[0]
    return place if place.count(":") > 1 else place.partition(":")[0]
