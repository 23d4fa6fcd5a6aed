"""Where the door runs beside a process of this machine: a container of the stack's project, and pods on Kubernetes."""

from __future__ import annotations

import functools
import json
import os
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import compose_view
import kubernetes_validate
import pytest
from kubernetes_validate import utils as validator
from machinery import ROOT
from programs import needs
from rendered_targets import built, of_kind, pods, rendered, session

from labctl.deploy import swarm
from labctl.listener import Silent
from labctl.manifest.catalog import load
from labctl.runtimes import door, images
from labctl.runtimes.compose import ComposeRuntime
from labctl.runtimes.processes import Command
from labctl.runtimes.record import Choices, UpOptions
from labctl.stack import targets
from labctl.stack.ports import free_endpoints
from labctl.stack.session import Session
from labctl.stack.stack import Stack
from labctl.stack.up import bring_up
from labctl.workspace import Workspace
from labkit.errors import LabError
from labkit.strict_yaml import parse_yaml
from labkit.tls import Pair

STACK, PORT = "iterative", 9123
EACH = pytest.mark.parametrize("profile", ["cpu", "gpu"])


def started(tmp_path: Path, tls: Pair | None = None, **options: Any) -> tuple[Command, Workspace]:
    """The command that starts the door's container beside ``labctl up iterative --runtime compose``."""
    workspace = Workspace(ROOT, tmp_path / "cache")
    opened = Session(workspace, load(workspace), Silent())
    lab, name = opened.catalog.stack(STACK)
    stack = Stack(opened, lab, name, ComposeRuntime(workspace), UpOptions(Choices(), runtime="compose", **options))
    (command,) = door.beside(workspace, bring_up(stack, free_endpoints(1)[0]).record, PORT, tls).commands
    return command, workspace


def service(tmp_path: Path, **options: Any) -> dict[str, Any]:
    """Compose's own view of the door's container."""
    command, _ = started(tmp_path, **options)
    with pytest.MonkeyPatch.context() as patch:
        for variable, value in command.env.items():
            patch.setenv(variable, value)
        found: dict[str, Any] = compose_view.services(
            [ROOT / "compose.yaml"], compose_profiles=["*"], compose_project_directory=ROOT
        )["openai"]
    return found


@pytest.mark.parametrize(
    ("options", "endpoint"),
    [
        ({}, "triton:8001"),
        ({"expose": True}, "triton:8001"),
        ({"replicas": 2}, "envoy:8001"),
        ({"replicas": 2, "expose": True}, "envoy:8001"),
        ({"replicas": 2, "balance": "client"}, "dns:///replicas:8001"),
    ],
    ids=str,
)
def test_the_container_speaks_to_what_stands_before_the_servers(
    tmp_path: Path, options: dict[str, Any], endpoint: str
) -> None:
    words = shlex.split(started(tmp_path, **options)[0].env["LABS_OPENAI_ARGS"])
    assert words[words.index("--endpoint") + 1] == endpoint
    assert words[words.index("--tokenizer") + 1].startswith("/labs/")
    assert ("--token-file" in words) == ("expose" in options)


def test_only_an_exposed_container_is_published_beyond_loopback_and_its_token_is_a_file_of_its_own(
    tmp_path: Path,
) -> None:
    command, workspace = started(tmp_path, expose=True)
    assert command.env["LABS_TOKEN_FILE"] == str(workspace.folder(STACK).token)
    assert "LABS_TOKEN_FILE" not in started(tmp_path)[0].env


def test_a_certificate_and_its_key_are_secrets_of_the_container_and_their_readers_are_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = Pair(tmp_path / "server.pem", tmp_path / "server.key")
    for path in (files.certificate, files.key):
        path.touch(0o644)
    files.key.chmod(0o600)
    found = files.key.stat()
    another = max(found.st_uid, found.st_gid) + 1  # who runs the tests may be nobody
    monkeypatch.setattr(os, "getuid", lambda: 0)  # root's containers run as nobody
    monkeypatch.setattr(door, "NOBODY", another)
    with pytest.raises(LabError, match=r"cannot read .*server.key") as caught:
        started(tmp_path, files, expose=True)
    assert caught.value.remedy == f"chgrp {another} {files.key} && chmod g+r {files.key}"
    monkeypatch.setattr(door, "NOBODY", found.st_gid)
    files.key.chmod(0o640)
    env = started(tmp_path, files, expose=True)[0].env
    assert (env["LABS_OPENAI_CERT_FILE"], env["LABS_OPENAI_KEY_FILE"]) == (str(files.certificate), str(files.key))
    words = shlex.split(env["LABS_OPENAI_ARGS"])
    assert words[words.index("--tls-key") + 1] == "/run/secrets/openai_key"
    assert "--tls-key" not in started(tmp_path, expose=True)[0].env["LABS_OPENAI_ARGS"]


@needs("docker compose")
def test_compose_gives_the_container_no_more_than_envoys_and_publishes_as_told(tmp_path: Path) -> None:
    for options, address in (({}, "127.0.0.1"), ({"expose": True}, "0.0.0.0")):
        found = service(tmp_path, **options)
        assert [(one["host_ip"], one["published"], one["target"]) for one in found["ports"]] == [
            (address, str(PORT), 9000)
        ]
        assert found["read_only"] and found["cap_drop"] == ["ALL"]
        assert found["security_opt"] == ["no-new-privileges:true"]
        assert not found["user"].startswith("0:") and found["user"] != "root"
        assert all(volume["read_only"] for volume in found["volumes"])
        assert found["mem_limit"] and found["pids_limit"] and found["healthcheck"]["test"]
        assert found["image"] == images.client_image(Workspace(ROOT, tmp_path))


@needs("docker compose")
def test_by_hand_it_is_published_on_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    found = compose_view.services([ROOT / "compose.yaml"], compose_profiles=["*"], compose_project_directory=ROOT)
    assert [one["host_ip"] for one in found["openai"]["ports"]] == ["127.0.0.1"]
    assert "openai" not in compose_view.services(
        [ROOT / "compose.yaml"], compose_profiles=[], compose_project_directory=ROOT
    )


# -- Kubernetes --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def schemas_read_once() -> Iterator[None]:
    """The validator reads the definitions of a version, a megabyte, for each document."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(validator, "schema_contents", functools.cache(validator.schema_contents))
        yield


def openai(documents: list[dict[str, Any]], kind: str, stack: str = STACK) -> dict[str, Any]:
    (found,) = [one for one in of_kind(documents, kind) if one["metadata"]["name"] == f"{stack}-openai"]
    return found


@needs("kubectl")
@EACH
@pytest.mark.parametrize("stack", [STACK, "inflight-batching"])
@pytest.mark.usefixtures("schemas_read_once")
def test_the_overlays_build_with_it_and_all_of_it_is_strictly_valid(stack: str, profile: str) -> None:
    documents, without = built(stack, profile, openai="true"), built(stack, profile)
    more = [one for one in documents if one not in without]
    assert sorted(one["kind"] for one in more) == ["Deployment", "NetworkPolicy", "Service"]
    assert [one for one in without if one not in documents] == [], "the rest is as it was"
    for document in more:
        kubernetes_validate.validate(document, "1.36.0", strict=True)


@needs("kubectl")
@EACH
def test_its_pods_are_as_restricted_as_envoys_and_have_probes_and_limits(profile: str) -> None:
    documents = built(STACK, profile, openai="true")
    every = dict(pods(documents))
    own, envoy = every[f"{STACK}-openai"], every[f"{STACK}-envoy"]
    same = ("securityContext", "automountServiceAccountToken", "enableServiceLinks", "serviceAccountName")
    assert {key: own[key] for key in same} == {key: envoy[key] for key in same}
    for container in (*own["initContainers"], *own["containers"]):
        assert container["securityContext"] == envoy["containers"][0]["securityContext"]
        for part in ("requests", "limits"):
            assert {"cpu", "memory", "ephemeral-storage"} <= set(container["resources"][part])
    (container,) = own["containers"]
    assert {"startupProbe", "livenessProbe", "readinessProbe"} <= set(container)
    assert int(container["lifecycle"]["preStop"]["exec"]["command"][-1]) < own["terminationGracePeriodSeconds"]
    volumes = {volume["name"]: volume for volume in own["volumes"]}
    mounts = [mount for one in (*own["initContainers"], container) for mount in one["volumeMounts"]]
    assert {mount["name"] for mount in mounts} == set(volumes)
    assert all(mount.get("readOnly") or mount["name"] == "tmp" for mount in container["volumeMounts"])
    assert all(volume["emptyDir"]["sizeLimit"] for volume in volumes.values() if "emptyDir" in volume)


@needs("kubectl")
@EACH
def test_its_token_is_a_secrets_which_it_cannot_start_without(profile: str) -> None:
    documents = built(STACK, profile, openai="true")
    pod = openai(documents, "Deployment")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    (secret,) = [volume["secret"] for volume in pod["volumes"] if "secret" in volume]
    assert secret["secretName"] == f"{STACK}-openai" and not secret.get("optional")
    (mount,) = [one for one in container["volumeMounts"] if one["name"] == "token"]
    args = container["args"]
    assert args[args.index("--token-file") + 1] == f"{mount['mountPath']}/token"
    assert container.get("env", []) == []


@needs("kubectl")
@EACH
def test_it_speaks_to_envoy_and_the_policies_let_it_and_its_clients(profile: str) -> None:
    documents = built(STACK, profile, openai="true")
    deployment, policy = openai(documents, "Deployment"), openai(documents, "NetworkPolicy")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    args = container["args"]
    host, _, port = args[args.index("--endpoint") + 1].partition(":")
    (envoy,) = [one for one in of_kind(documents, "Service") if one["metadata"]["name"] == host]
    assert int(port) in [one["port"] for one in envoy["spec"]["ports"]]
    labels = deployment["spec"]["template"]["metadata"]["labels"].items()
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= labels
    service = openai(documents, "Service")["spec"]
    assert service["selector"].items() <= labels
    assert container["ports"][0]["containerPort"] == int(args[args.index("--port") + 1]) == service["ports"][0]["port"]
    assert policy["spec"]["ingress"][0]["ports"] == [{"protocol": "TCP", "port": 9000}]
    to_envoy = policy["spec"]["egress"][0]
    (pods_of_envoy,) = [
        d["spec"]["template"] for d in of_kind(documents, "Deployment") if "-envoy" in d["metadata"]["name"]
    ]
    assert to_envoy["to"][0]["podSelector"]["matchLabels"].items() <= pods_of_envoy["metadata"]["labels"].items()
    assert to_envoy["ports"] == [{"protocol": "TCP", "port": 8001}]


@needs("kubectl")
def test_a_profile_with_another_tokenizer_is_told_of_it() -> None:
    args = {
        profile: openai(built(STACK, profile, openai="true"), "Deployment")["spec"]["template"]["spec"]["containers"][
            0
        ]["args"]
        for profile in ("cpu", "gpu")
    }
    for profile, words in args.items():
        opened = session()
        lab, name = opened.catalog.stack(STACK)
        plan = targets.plan_for(opened, lab, name, Choices(), profile)
        assert words[words.index("--tokenizer") + 1] == opened.runtime("compose").client_path(Path(plan.tokenizer_dir))


@pytest.mark.parametrize("target", ["kubernetes", "swarm"])
def test_a_stack_without_a_text_model_is_refused(target: str) -> None:
    with pytest.raises(LabError, match="sequence-batcher has no text model"):
        rendered("sequence-batcher", target, openai="true")


# -- Swarm -------------------------------------------------------------------------------------------------------------


def swarm_file(**settings: str) -> dict[str, Any]:
    found: dict[str, Any] = parse_yaml((rendered(STACK, "swarm", **settings) / swarm.FILE).read_text())
    return found


def test_in_swarm_it_is_one_more_service_as_restricted_as_envoy() -> None:
    with_it, without = swarm_file(openai="true"), swarm_file()
    own = with_it["services"].pop("openai")
    secret = with_it["secrets"].pop("openai")
    assert with_it == without, "the rest is as it was"
    envoy = without["services"]["envoy"]
    for key in ("user", "init", "read_only", "cap_drop", "logging"):
        assert own[key] == envoy[key]
    assert own.keys() - envoy.keys() == {"secrets"}
    assert own["deploy"] == envoy["deploy"]
    assert secret == {"external": True, "name": f"{STACK}-openai"}
    args, (mounted,) = own["command"], own["secrets"]
    assert args[args.index("--token-file") + 1] == f"/run/secrets/{mounted['target']}"
    assert args[args.index("--endpoint") + 1] == "envoy:8001"
    assert [one["target"] for one in own["volumes"]] == ["/tmp", "/labs/models", "/labs/cache"]
    assert all(one.get("read_only") for one in own["volumes"] if one["type"] == "bind")


@needs("docker compose")
def test_compose_reads_the_file_for_swarm_with_it() -> None:
    folder = rendered(STACK, "swarm", openai="true")
    found = compose_view.services([folder / swarm.FILE], compose_project_directory=folder)["openai"]
    assert [(one["target"], one["published"], one["mode"]) for one in found["ports"]] == [(9000, "9000", "host")]
    assert found["image"] == images.client_image(session().workspace)


def test_images_build_makes_its_image_too() -> None:
    opened = session()
    lab, name = opened.catalog.stack(STACK)
    client = images.client_image(opened.workspace)
    assert client in targets.images_to_build(opened, lab, name, Choices(set={"openai": "true"}), "")[1]
    (container,) = parse_yaml((rendered(STACK, openai="true") / "base" / "openai.yaml").read_text())["spec"][
        "template"
    ]["spec"]["containers"]
    assert container["image"] == client
    assert json.dumps(container["args"]).count("labdoor") == 1
