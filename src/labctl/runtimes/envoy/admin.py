"""What a running Envoy says of the servers that it spreads requests over, asked on its own socket.

``python -m labctl.runtimes.envoy.admin SOCKET`` prints it as JSON, for a container whose socket labctl cannot reach.
"""

from __future__ import annotations

import http.client
import json
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

HOSTNAME = "replica-"  # and the number: what Envoy calls a server
PATIENCE_S = 5.0


@dataclass(frozen=True)
class UpstreamHealth:
    """One server as Envoy sees it, over both protocols.

    Attributes:
        healthy: it gets requests, unless it is ``draining``.
        active: requests that it has not answered whole (streams that are open); under l4, connections.
        total: requests, or connections, that it got since Envoy knows it.
    """

    healthy: bool = True
    draining: bool = False
    active: int = 0
    total: int = 0


REMOVED = "pending_dynamic_removal"
ILL = ("failed_active_health_check", "failed_outlier_check", "pending_active_hc")


class _Socket(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("envoy", timeout=PATIENCE_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(PATIENCE_S)
        self.sock.connect(self._path)


def clusters(path: str) -> dict[str, Any]:
    """Envoy's page of clusters and their hosts. Raises OSError or ValueError where it does not answer."""
    connection = _Socket(path)
    try:
        connection.request("GET", "/clusters?format=json")
        document: dict[str, Any] = json.loads(connection.getresponse().read())
        return document
    except http.client.HTTPException as error:
        raise OSError(str(error)) from error
    finally:
        connection.close()


def read_upstreams(document: Mapping[str, Any], l4: bool = False) -> dict[int, UpstreamHealth]:
    """The servers on that page, by their number."""
    found: dict[int, UpstreamHealth] = {}
    kind = "cx" if l4 else "rq"
    for cluster in document["cluster_statuses"]:
        for host in cluster.get("host_statuses", ()):
            if not str(host.get("hostname", "")).startswith(HOSTNAME) or host["health_status"].get(REMOVED):
                continue
            number, health = int(host["hostname"].removeprefix(HOSTNAME)), host["health_status"]
            counts = {stat["name"]: int(stat.get("value", 0)) for stat in host["stats"]}
            before = found.get(number, UpstreamHealth())
            found[number] = UpstreamHealth(
                before.healthy and not any(health.get(name) for name in ILL),
                health.get("eds_health_status") == "DRAINING",
                before.active + counts[f"{kind}_active"],
                before.total + counts[f"{kind}_total"],
            )
    return found


def main() -> None:
    print(json.dumps(clusters(sys.argv[1])))


if __name__ == "__main__":
    main()
