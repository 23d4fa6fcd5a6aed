"""What is deployed: a server, what prepares it, and the clusters' own names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from labctl import texts
from labkit.errors import LabError
from labkit.strict_yaml import Dumper, parse_yaml

MOST = 8  # replicas: kubernetes/base/autoscaler.yaml
FOLDER = Path(__file__).parent
CONFIG = "/etc/envoy/envoy.json"  # in Envoy's containers


@dataclass(frozen=True)
class Server:
    """One profile's Triton, as Compose would run it.

    Attributes:
        entrypoint: () is the image's own.
        environment: without what the files of this package say themselves.
        closed: Triton's APIs that need the secret.
        shm: the size of /dev/shm, as Docker writes it ("256m").
        exit_s: seconds from being asked to stop to being killed.
    """

    image: str
    entrypoint: Sequence[str]
    arguments: Sequence[str]
    environment: Mapping[str, str]
    closed: str
    shm: str
    exit_s: int
    gpus: int = 0


@dataclass(frozen=True)
class Tool:
    """A command of Compose's engine-builder: weights, exports, engines. ``makes`` is a path in the containers."""

    image: str
    command: Sequence[str]
    makes: str
    gpus: int = 0


@dataclass(frozen=True)
class Serving:
    """What one profile serves.

    Attributes:
        probes: a body for each path that is asked once when a server starts.
        repository: rendered, on this machine; None where its templates are in the serving image alone.
        templates, render: then, where they are there, and labctl's command that renders them.
    """

    server: Server
    probes: Mapping[str, Any]
    tools: Sequence[Tool] = ()
    repository: Path | None = None
    templates: str = ""
    render: Sequence[str] = ()


@dataclass(frozen=True)
class Cluster:
    """What clusters differ in: ``labctl render --target kubernetes --set NAME=VALUE``. "" leaves a thing out.

    Attributes:
        guard, openai: whether a judge sees every request (docs/operate/security.md); whether there is an OpenAI API.
        cpu_request: the processors that a server's pod requests, such as "500m"; "" is the profile's own number.
        gpu_product: the kind of GPU, as the node label ``nvidia.com/gpu.product`` has it.
        gateway: the Gateway of the cluster whose requests go to the servers that an endpoint picker chooses.
        keda: Prometheus' address for a KEDA ScaledObject, which then takes the HorizontalPodAutoscaler's place.
        registry: where nodes pull the images from ("registry.example.com/labs").
        prometheus_release: the label ``release`` by which a Prometheus Operator selects its resources.
        priority_class, pull_secret, storage_class: names of what the cluster has.
    """

    guard: bool = True
    openai: bool = False
    cpu_request: str = ""
    gateway: str = ""
    gpu_product: str = ""
    keda: str = ""
    prometheus_release: str = ""
    priority_class: str = ""
    pull_secret: str = ""
    registry: str = ""
    storage_class: str = ""

    def image(self, name: str) -> str:
        """The name by which nodes pull an image of ours."""
        return f"{self.registry}/{name}" if self.registry else name


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
    cluster: Cluster = Cluster()

    @property
    def prepared(self) -> bool:
        """Whether there are weights or engines to be made; shipped models come with the checkout's files."""
        return any(serving.tools for serving in self.serving.values())

    @property
    def stateful(self) -> bool:
        """A sequence finds its server again by the server's name, which only a StatefulSet's pods keep."""
        return self.policy == "hash"

    @property
    def server_names(self) -> list[str]:
        """The servers as DNS knows them: together, or each by its own."""
        server = f"{self.stack}-triton"
        return [f"{server}-{number}.{server}" for number in range(MOST)] if self.stateful else [server]

    @property
    def remembers_sequences(self) -> bool:
        """Whether Envoy's judge remembers sequence ids."""
        folders = (serving.repository for serving in self.serving.values() if serving.repository)
        configs = (path.read_text(encoding="utf-8") for folder in folders for path in folder.rglob("config.pbtxt"))
        return self.cluster.guard and any("iterative_sequence" in config for config in configs)

    @property
    def values(self) -> dict[str, Any]:
        """The values of the placeholders that are the same in all files."""
        cluster = self.cluster
        return {
            "stack": self.stack,
            "kind": "StatefulSet" if self.stateful else "Deployment",
            "envoy_image": self.envoy,
            "files_image": self.files,
            "tools_image": self.tools,
            "trace_port": urlsplit(self.trace).port or "",
            "priority_class": cluster.priority_class,
            "pull_secret": cluster.pull_secret,
            "storage_class": cluster.storage_class,
            "gateway": cluster.gateway,
            "gpu_product": cluster.gpu_product,
            "keda": cluster.keda,
            "release": cluster.prometheus_release,
        }

    def read(self, name: str, **values: Any) -> Any:
        """A file of kubernetes/, filled and parsed."""
        return parse(fill(f"kubernetes/{name}", {**self.values, **values}))


def fill(name: str, values: Mapping[str, Any]) -> str:
    """The file ``name`` of this package with every placeholder filled. Raises LabError where one has no value."""
    text, problems = texts.fill(name, (FOLDER / name).read_text(encoding="utf-8"), values, optional=values)
    if problems:
        raise LabError(f"{name} cannot be filled", details=[str(problem) for problem in problems])
    return text


def parse(text: str) -> Any:
    """The document in ``text``. What is empty in it (``name: ""``) is left out, and what holds nothing else."""
    return _without_empty(parse_yaml(text))


def _without_empty(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: left for key, item in value.items() if not _emptied(left := _without_empty(item), item)}
    if isinstance(value, list):
        return [left for item in value if not _emptied(left := _without_empty(item), item)]
    return value


def _emptied(left: Any, before: Any) -> bool:
    return left is None or left == "" or (left in ({}, []) and left != before)


class _Dumper(Dumper):  # type: ignore[misc]
    """No anchors, and scripts as blocks."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


_Dumper.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None),
)


def dump(document: Any) -> str:
    return str(yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=120))
