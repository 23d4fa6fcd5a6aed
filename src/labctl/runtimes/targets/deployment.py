"""What is deployed on Kubernetes, and how its parts are called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Manifest = dict[str, Any]
LEAST, MOST = 2, 8  # replicas
PART_OF = {"app.kubernetes.io/part-of": "triton-labs"}


@dataclass(frozen=True)
class Tool:
    """A command of Compose's engine-builder: weights, exports, engines. ``makes`` is a path in the containers."""

    image: str
    command: Sequence[str]
    makes: str
    gpus: int = 0


@dataclass(frozen=True)
class Serving:
    """One profile's server.

    Attributes:
        service: the Compose service that it is derived from.
        probes: a body for each path that is asked once when a server starts.
        repository: rendered, on this machine; None where its templates are in the serving image alone.
        templates, fill: then, where the image has them, and labctl's command that renders them from /templates to
            /tmp/rendered.
    """

    service: Mapping[str, Any]
    probes: Mapping[str, Any]
    tools: Sequence[Tool] = ()
    repository: Path | None = None
    templates: str = ""
    fill: Sequence[str] = ()


@dataclass(frozen=True)
class Deployment:
    """A stack.

    Attributes:
        policy: how Envoy spreads requests: "l7" or "hash".
        envoy, files, tools: images: Envoy; the checkout's files; what makes weights and engines.
        serving: by profile; "cpu" is the base.
        trace: an OTLP/HTTP receiver; "" is none.
    """

    stack: str
    policy: str
    envoy: str
    files: str
    tools: str
    serving: Mapping[str, Serving]
    trace: str = ""

    @property
    def server(self) -> str:
        return f"{self.stack}-triton"

    @property
    def balancer(self) -> str:
        return f"{self.stack}-envoy"

    @property
    def prepared(self) -> bool:
        """Whether there are weights or engines to be made; shipped models come with the checkout's files."""
        return any(each.tools for each in self.serving.values())

    @property
    def kind(self) -> str:
        """A sequence finds its server again by the server's name, which only a StatefulSet's pods keep."""
        return "StatefulSet" if self.policy == "hash" else "Deployment"

    @property
    def names(self) -> list[str]:
        """The servers as DNS knows them: together, or each by its own."""
        if self.kind == "Deployment":
            return [self.server]
        return [f"{self.server}-{number}.{self.server}" for number in range(MOST)]

    @property
    def everything(self) -> dict[str, str]:
        """The labels that all parts have."""
        return {"app.kubernetes.io/instance": self.stack, **PART_OF}

    def labels(self, part: str) -> dict[str, str]:
        return {"app.kubernetes.io/name": part, **self.everything}


def manifest(api: str, kind: str, name: str, labels: Mapping[str, str] | None = None, **fields: Any) -> Manifest:
    return {"apiVersion": api, "kind": kind,
            "metadata": {"name": name, **({"labels": dict(labels)} if labels else {})}, **fields}  # fmt: skip


# The rendered repository as a ConfigMap: its keys are flat, and it has neither links nor empty folders.


def files(repository: Path) -> list[str]:
    """The files of a rendered repository, by their paths in it."""
    every = (path for path in repository.rglob("*") if path.is_file() and not path.is_symlink())
    return sorted(str(path.relative_to(repository)) for path in every)


def key(path: str) -> str:
    return path.replace("/", "--")
