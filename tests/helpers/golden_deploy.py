"""What ``labctl render --target kubernetes|swarm`` makes, kept as files: tests/golden/TARGET/CASE/.

Run as a program, it writes them anew: `.venv/bin/python tests/golden_deploy.py`, then read `git diff`. It needs kubectl
and docker's command line, and asks neither a cluster nor an engine.

`resources.yaml` is what `kubectl kustomize` builds (in one case all, else some kinds). `resolved.yaml` is what
`docker stack config` reads. What follows from the sources alone is left out: the tags of images, hashes in names, and
the contents of the repository and the dashboards.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from checkout import ROOT

from labctl.listener import Silent
from labctl.manifest.catalog import load_catalog
from labctl.options import Options
from labctl.stack import deploy
from labctl.stack.session import Session
from labctl.workspace import Workspace

GOLDEN = ROOT / "tests" / "golden"
CACHE = ROOT / ".no-cache"
_scratch = tempfile.TemporaryDirectory(prefix="labs-rendered-")


@dataclass(frozen=True)
class Case:
    """A call of ``labctl render``.

    Attributes:
        components: what an operator then adds by hand.
        kinds: those of the golden file; () is all.
    """

    target: str
    stack: str
    profile: str = "cpu"
    settings: Mapping[str, Any] = field(default_factory=dict)
    registry: str = ""
    release: str = ""
    components: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ("ConfigMap",)

    @property
    def options(self) -> Options:
        templates = GOLDEN / self.release / "templates" if self.release else None  # tests/golden_releases.py
        return Options(self.profile, self.settings, self.release, templates)


TRACED = {"trace": "otlp://collector:4319", "slo": "ttft<500ms,tpot<60ms"}
CASES = {
    "kubernetes/iterative": Case("kubernetes", "iterative"),
    "kubernetes/sequence-batcher": Case("kubernetes", "sequence-batcher"),
    "kubernetes/everything": Case(
        "kubernetes",
        "inflight-batching",
        settings=TRACED,
        registry="registry.example.com:5000/labs",
        components=("kubernetes/components/door", "kubernetes/components/observe", "../mine"),
        kinds=(),
    ),
    "kubernetes/gpu": Case("kubernetes", "inflight-batching", "gpu"),
    "kubernetes/gpu-tensorrt-llm": Case(
        "kubernetes",
        "inflight-batching",
        "gpu",
        {"engine": "tensorrt-llm", "tp_size": 2},
        release="0.17.0",
        kinds=("ConfigMap", "StatefulSet", "Job"),
    ),
    "swarm/iterative": Case("swarm", "iterative"),
    "swarm/sequence-batcher": Case("swarm", "sequence-batcher"),
    "swarm/gpu": Case("swarm", "inflight-batching", "gpu", TRACED, registry="registry.example.com:5000/labs"),
}


def session() -> Session:
    workspace = Workspace(ROOT, CACHE)
    return Session(workspace, load_catalog(workspace), Silent())


@functools.cache
def rendered(name: str) -> Path:
    """The folder that is rendered for a case, with the components that are added to it."""
    case, opened = CASES[name], session()
    lab, stack = opened.catalog.stack(case.stack)
    folder = Path(_scratch.name) / name
    deploy.render_deployment(opened, lab, stack, case.options, case.target, case.registry, folder)
    if case.components:
        (mine := folder.parent / "mine").mkdir()
        (mine / "kustomization.yaml").write_text(documented_component())
        path = folder / "kustomization.yaml"
        added = "".join(f"- {component}\n" for component in case.components)
        path.write_text(path.read_text().replace("labels:\n", f"{added}labels:\n", 1))
    return folder


def documented_component() -> str:
    """The component with an operator's own patches that docs/operate/kubernetes.md shows."""
    page = (ROOT / "docs" / "operate" / "kubernetes.md").read_text()
    (block,) = re.findall(r"^```yaml\n(# mine/kustomization.yaml\n.*?)^```$", page, re.S | re.M)
    return str(block)


@functools.cache
def built(name: str) -> list[dict[str, Any]]:
    """The resources that ``kubectl kustomize`` builds of a case."""
    return list(yaml.load_all(run("kubectl", "kustomize", str(rendered(name))), yaml.CSafeLoader))


def resolved(name: str) -> dict[str, Any]:
    """The stack of a case as ``docker stack config`` reads it with ``stack.env``."""
    folder = rendered(name)
    files = [word for path in sorted(folder.glob("*.yaml"), reverse=True) for word in ("-c", str(path))]
    lines = [line.partition("=") for line in (folder / "stack.env").read_text().splitlines()]
    env = {key: "".join(shlex.split(value)) for key, _, value in lines}
    found: dict[str, Any] = yaml.safe_load(run("docker", "stack", "config", *files, env=env))
    del found["version"]  # the newest form that this docker knows
    return found


def run(*argv: str, env: Mapping[str, str] | None = None) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env={**os.environ, **(env or {})})
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


def texts(name: str) -> dict[str, str]:
    """The golden files of a case, as the code has them now."""
    folder, case = rendered(name), CASES[name]
    kept = ["stack.env", "triton.env"] if case.target == "swarm" else ["kustomization.yaml"]
    found = {file: (folder / file).read_text() for file in kept}
    with contextlib.suppress(FileNotFoundError):  # where there is no such program
        if case.target == "kubernetes":
            shown = [_shown(one) for one in built(name) if not case.kinds or one["kind"] in case.kinds]
            found["resources.yaml"] = yaml.dump_all(shown, Dumper=deploy._Blocks, width=120)
        elif case.profile == "gpu":
            found["resolved.yaml"] = yaml.safe_dump(resolved(name), width=120)
    return {key: _normal(text) for key, text in found.items()}


def _shown(document: dict[str, Any]) -> dict[str, Any]:
    """A resource without what follows from the sources."""
    name = document["metadata"]["name"].partition("-")[0]
    if document["kind"] == "Secret" or (document["kind"] == "ConfigMap" and name in ("repository", "dashboards")):
        said = ("links", "probes.json")
        data = {key: text if key in said else "(its content)" for key, text in document["data"].items()}
        return {**document, "data": data}
    if document["kind"] == "PrometheusRule":
        return {**document, "spec": "(docker/observe/rules.yaml)"}
    return document


def _normal(text: str) -> str:
    text = text.replace(_scratch.name, "/rendered").replace(str(ROOT), "/checkout")
    text = re.sub(r"\b(triton|openai|repository|prepare|envoy|dashboards)-[a-z0-9]{10}\b", r"\1-HASH", text)
    text = re.sub(r"(LABS_CONTENT=|-envoy-|-token-)[0-9a-f]{12}\b", r"\1HASH", text)
    return re.sub(r"(labs-\w+:|newTag: )((?:cpu|gpu)-)?'?[0-9a-f]{12}\b'?", r"\1\2TAG", text)


def write() -> None:
    """Write every golden file."""
    for target in ("kubernetes", "swarm"):
        shutil.rmtree(GOLDEN / target, ignore_errors=True)
    for name in CASES:
        for file, text in texts(name).items():
            path = GOLDEN / name / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)


if __name__ == "__main__":
    write()
