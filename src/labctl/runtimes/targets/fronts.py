"""Envoy before servers that are found by name: the balancer of ``--replicas``, where DNS says who is there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from labctl.guard import envoy
from labctl.guard.balance import Balance
from labctl.guard.envoy import Front
from labctl.guard.parts import Address
from labctl.guard.traced import traced
from labctl.runtimes.arguments import GRPC, HTTP, METRICS

ADMIN = "/tmp/admin"  # Envoy's own interface: a socket in memory, its container's alone
CONFIG = "/etc/envoy/envoy.json"
REFRESH = "1s"  # between two questions to DNS
COMMAND = ["envoy", *envoy.arguments(CONFIG)]


def over_names(policy: str, names: Sequence[str], trace: str = "") -> dict[str, Any]:
    """Envoy's configuration.

    Args:
        policy: "l7", or "hash" where a sequence must stay with its server.
        trace: an OTLP/HTTP receiver for Envoy's spans.
        names: one that stands for every server, or one for each; of those that nobody has (yet) nothing is expected.
    """
    fronts = [Front(Address("0.0.0.0", port)) for port in (HTTP, GRPC, METRICS)]
    config = envoy.configuration(fronts[0], fronts[1], fronts[2], balance=Balance(policy, Path("/"), ADMIN))
    clusters = config["static_resources"]["clusters"]
    for cluster, port in ((c, port) for c in clusters for name, port in (("http", HTTP), ("grpc", GRPC))
                          if c["name"] == name):  # fmt: skip
        del cluster["eds_cluster_config"]
        cluster |= {
            "type": "STRICT_DNS",
            "dns_refresh_rate": REFRESH,
            "respect_dns_ttl": False,
            "load_assignment": {"cluster_name": cluster["name"], "endpoints": [
                {"lb_endpoints": [{"endpoint": {"address": Address(name, port).envoy(),
                                                "health_check_config": {"port_value": HTTP}}}]}
                for name in names
            ]},
        }  # fmt: skip
        # With a name for each server, its place on the ring is its name's; else its address is all there is.
        cluster["common_lb_config"]["consistent_hashing_lb_config"] = {"use_hostname_for_hashing": len(names) > 1}
    return traced(config, trace, "envoy")
