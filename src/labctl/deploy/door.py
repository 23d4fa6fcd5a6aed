"""The OpenAI API in a stack's files for many machines, filled and added: Kubernetes' and Swarm's."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from labctl.deploy import swarm
from labctl.deploy.kustomize import HEADER
from labctl.deploy.stack import Cluster, Deployment, dump, fill, parse
from labctl.plan import Plan
from labctl.runtimes import images
from labctl.runtimes.compose import ComposeRuntime
from labctl.runtimes.door import PORT, SECRET, SERVICE
from labctl.runtimes.record import ANY_ADDRESS
from labctl.triton.arguments import GRPC
from labctl.workspace import Workspace
from labkit.errors import LabError
from labkit.strict_yaml import parse_yaml

FILES = ("network-openai.yaml", "openai-service.yaml", "openai.yaml")
KEY = "token"  # of the Secret, and so the name of its file
MODELS = ("/labs/models", "/labs/cache")  # where tokenizers may be
WAIT_S = 1800  # for the servers' first start, as long as theirs may take


def add(deployment: Deployment, plans: Mapping[str, Plan], workspace: Workspace, folder: Path) -> None:
    """Add it to the files for Kubernetes in ``folder``, where it is asked for.

    Raises LabError: none of the stack's models continues texts.
    """
    if not deployment.cluster.openai:
        return
    envoy, token = f"{deployment.stack}:{GRPC}", f"{SECRET}/{KEY}"
    args = {profile: _arguments(plan, workspace, envoy, token) for profile, plan in plans.items()}
    image = deployment.cluster.image(images.client_image(workspace))
    documents = {name: deployment.read(f"openai/{name}", client_image=image) for name in FILES}
    pod = documents["openai.yaml"]["spec"]["template"]["spec"]
    pod["containers"][0]["args"] = args["cpu"]
    if not deployment.prepared:  # as of the servers
        cache = next(volume for volume in pod["volumes"] if volume["name"] == "cache")
        del cache["persistentVolumeClaim"]
        cache["emptyDir"] = {"sizeLimit": "1Gi"}
    for name, document in documents.items():
        write(deployment, folder / "base" / name, document)
    extend(deployment, folder / "base", "resources", FILES)
    target = {"kind": "Deployment", "name": f"{deployment.stack}-openai"}
    for profile in plans:
        if args[profile] != args["cpu"]:
            overlay, name = folder / "overlays" / profile, "openai-patch.yaml"
            replace = {"op": "replace", "path": "/spec/template/spec/containers/0/args", "value": args[profile]}
            write(deployment, overlay / name, [replace])
            extend(deployment, overlay, "patches", [{"path": name, "target": target}])


def add_to_swarm(plan: Plan, cluster: Cluster, workspace: Workspace, folder: Path) -> None:
    """Add it to the file for Swarm in ``folder``, where it is asked for. Raises LabError as :func:`add`."""
    if not cluster.openai:
        return
    values = {"stack": plan.name, "image": cluster.image(images.client_image(workspace))}
    own = parse(fill("swarm-openai.yaml", {**values, "port": f"${{LABS_OPENAI_PORT:-{PORT}}}"}))
    path = folder / swarm.FILE
    document = parse_yaml(path.read_text(encoding="utf-8"))
    service = own["services"][SERVICE]
    service["command"] = _arguments(plan, workspace, f"envoy:{GRPC}", SECRET)
    service["volumes"] += [one for one in document["services"]["triton"]["volumes"] if one["target"] in MODELS]
    for key, more in own.items():
        document[key] |= more
    path.write_text(swarm.HEADER.format(stack=plan.name) + dump(document), encoding="utf-8")


def _arguments(plan: Plan, workspace: Workspace, envoy: str, token: str) -> list[str]:
    """Python's arguments in the container: in front of Envoy, with the token in a file. Raises LabError as above."""
    if plan.stack.bench is None:
        raise LabError(f"{plan.name} has no text model", "the OpenAI API is for models that continue texts")
    runtime, models = ComposeRuntime(workspace), ",".join(plan.stack.models)
    said = ["-m", "labdoor", "--endpoint", envoy, "--models", models]
    said += ["--tokenizer", runtime.client_path(Path(plan.tokenizer_dir))] if plan.tokenizer_dir else []
    return [*said, "--host", ANY_ADDRESS, "--port", str(PORT), "--token-file", token, "--wait", str(WAIT_S)]


def extend(deployment: Deployment, folder: Path, key: str, more: Any) -> None:
    """Add to a list of a folder's kustomization."""
    path = folder / "kustomization.yaml"
    document = parse_yaml(path.read_text(encoding="utf-8"))
    write(deployment, path, {**document, key: [*document.get(key, ()), *more]})


def write(deployment: Deployment, path: Path, document: Any) -> None:
    """Write a document as a rendered file."""
    path.write_text(HEADER.format(stack=deployment.stack) + dump(document), encoding="utf-8")
