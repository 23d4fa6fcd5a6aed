"""The small change of Envoy's configuration: addresses, and names of types."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


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


def typed(name: str, **fields: Any) -> dict[str, Any]:
    """A message of that type, as Envoy wants to be told it."""
    return {"@type": f"type.googleapis.com/{name}", **fields}


def http_filter(name: str, kind: str, **fields: Any) -> dict[str, Any]:
    package = f"envoy.extensions.filters.http.{name}.v3.{kind}"
    return {"name": f"envoy.filters.http.{name}", "typed_config": typed(package, **fields)}


def network_filter(name: str, kind: str, **fields: Any) -> dict[str, Any]:
    package = f"envoy.extensions.filters.network.{name}.v3.{kind}"
    return {"name": f"envoy.filters.network.{name}", "typed_config": typed(package, **fields)}
