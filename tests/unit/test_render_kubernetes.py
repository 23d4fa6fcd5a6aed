"""``labctl render --target kubernetes``: whole manifests, strictly valid, and the same server as Compose's."""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from kubernetes_validate import utils as validator
from programs import needs
from rendered_targets import ONLY_CPU, STACKS, built, composed, kustomized, of_kind, pods, rendered, session

from labctl import repository
from labctl.deploy import kustomize
from labctl.deploy import stack as stack_
from labctl.deploy.stack import FOLDER
from labctl.listener import Silent
from labctl.runtimes.envoy import config as envoy
from labctl.runtimes.record import Choices
from labctl.stack import targets
from labkit.errors import LabError
from labkit.strict_yaml import parse_yaml

VERSIONS = ("1.32.0", "1.36.0")  # the oldest and the newest that are in use
NATIVE = re.compile(r"^(v1|[a-z]+/v\d|[a-z.]+\.k8s\.io/v\d)$")
PROFILES = ("cpu", "gpu")
EACH = pytest.mark.parametrize("profile", PROFILES)
SOME = pytest.mark.parametrize(
    "stack", [s for s in ("sequence-batcher", "iterative", "inflight-batching") if s in STACKS]
)


def server(stack: str, profile: str) -> dict[str, Any]:
    (found,) = [pod for name, pod in pods(built(stack, profile)) if name == f"{stack}-triton"]
    return found


@pytest.mark.parametrize("stack", STACKS)
def test_every_file_is_a_whole_manifest_of_kubernetes_own_api_or_says_in_its_name_what_it_is(stack: str) -> None:
    for path in rendered(stack).rglob("*.yaml"):
        if path.name != "kustomization.yaml" and "patch" not in path.name:
            document = parse_yaml(path.read_text())
            assert NATIVE.match(document["apiVersion"]) and document["kind"] and document["metadata"]["name"], path


@pytest.mark.parametrize("stack", sorted(ONLY_CPU))
def test_a_stack_that_one_profile_cannot_serve_is_refused_instead_of_rendered(stack: str) -> None:
    with pytest.raises(LabError, match="engine=vllm is not served on the gpu profile"):
        rendered(stack)


@pytest.fixture(scope="module")
def schemas_read_once() -> Iterator[None]:
    """The validator reads the definitions of a version, a megabyte, for each document."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(validator, "schema_contents", functools.cache(validator.schema_contents))
        yield


@needs("kubectl")
@EACH
@SOME
@pytest.mark.usefixtures("schemas_read_once")
def test_an_overlay_builds_and_its_every_resource_is_strictly_valid(stack: str, profile: str) -> None:
    for document in built(stack, profile):
        kubernetes_validate.validate(document, VERSIONS[profile == "gpu"], strict=True)


@needs("kubectl")
@pytest.mark.parametrize("part", ["overlays/cpu", "overlays/gpu", "operators"])
@pytest.mark.usefixtures("schemas_read_once")
def test_the_shipped_tree_builds_as_it_is_and_what_it_builds_is_strictly_valid(part: str) -> None:
    documents = kustomized(FOLDER / "kubernetes" / part)
    assert documents
    for document in documents:
        if NATIVE.match(document["apiVersion"]):
            kubernetes_validate.validate(document, VERSIONS[-1], strict=True)
        else:
            assert part == "operators", "no cluster is asked for what it may not have"


def test_keda_and_the_horizontal_pod_autoscaler_follow_the_same_signals_at_the_same_pace() -> None:
    own, keda = (
        parse_yaml((FOLDER / "kubernetes" / name / "autoscaler.yaml").read_text())["spec"]
        for name in ("base", "operators")
    )
    assert (own["minReplicas"], own["maxReplicas"]) == (keda["minReplicaCount"], keda["maxReplicaCount"])
    assert own["maxReplicas"] == stack_.MOST, "Envoy's configuration has a name for each"
    assert own["behavior"] == keda["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    adapter = parse_yaml((FOLDER / "kubernetes/base/adapter.yaml").read_text())["data"]["config.yaml"]
    for signal, trigger, rule in zip(own["metrics"], keda["triggers"], parse_yaml(adapter)["rules"], strict=True):
        assert signal["pods"]["metric"]["name"] == rule["name"]["as"]
        assert signal["pods"]["target"]["averageValue"] == trigger["metadata"]["threshold"]
        query = rule["metricsQuery"].replace("<<.LabelMatchers>>", 'pod=~"${stack}-triton-.*"')
        assert query.replace("sum by (<<.GroupBy>>)", "sum") == trigger["metadata"]["query"]


@needs("kubectl", "docker compose")
@EACH
@SOME
def test_image_command_mounts_and_environment_are_those_that_compose_would_run(stack: str, profile: str) -> None:
    compose, (container,) = composed(stack, profile), server(stack, profile)["containers"]
    assert container["image"] == compose["image"]
    assert container.get("command") == compose["entrypoint"]
    assert container.get("args", []) == (compose["command"] or [])
    assert {item["name"]: item["value"] for item in container["env"]} == compose["environment"]
    mounted = {mount["mountPath"]: mount.get("readOnly", False) for mount in container["volumeMounts"]}
    wanted = {volume["target"]: volume.get("read_only", False) for volume in compose["volumes"]}
    scratch = {place.partition(":")[0]: False for place in compose["tmpfs"]}
    assert mounted == {**wanted, **scratch, "/dev/shm": False, "/run/secrets": True}
    volumes = {volume["name"]: volume for volume in server(stack, profile)["volumes"]}
    assert volumes["shm"]["emptyDir"]["medium"] == "Memory"
    assert int(volumes["shm"]["emptyDir"]["sizeLimit"].rstrip("MiG")) * {"M": 2**20, "G": 2**30}[
        volumes["shm"]["emptyDir"]["sizeLimit"][-2]
    ] == int(compose["shm_size"])
    security = container["securityContext"]
    assert f"{security['runAsUser']}:{security['runAsGroup']}" == compose["user"]
    assert (security["readOnlyRootFilesystem"], security["capabilities"]["drop"]) == (
        compose["read_only"],
        compose["cap_drop"],
    )
    gpus = compose.get("deploy", {}).get("resources", {}).get("reservations", {}).get("devices", [{"count": 0}])
    assert int(container["resources"]["limits"].get("nvidia.com/gpu", 0)) == gpus[0]["count"]


@needs("kubectl")
@EACH
@SOME
def test_nobody_is_root_nothing_is_latest_and_all_have_limits_and_probes(stack: str, profile: str) -> None:
    for name, pod in pods(built(stack, profile)):
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        assert pod["automountServiceAccountToken"] is False, name
        for container in (*pod.get("initContainers", ()), *pod["containers"]):
            security, where = container["securityContext"], (name, container["name"])
            assert security["runAsNonRoot"] and security["runAsUser"] > 0, where
            assert not security["allowPrivilegeEscalation"] and security["readOnlyRootFilesystem"], where
            assert security["capabilities"] == {"drop": ["ALL"]}, where
            assert not re.search(r":latest$|^[^:]+$", container["image"]), where
            for part in ("requests", "limits"):
                assert {"cpu", "memory", "ephemeral-storage"} <= set(container["resources"][part]), where
        for volume in pod["volumes"]:
            assert "emptyDir" not in volume or volume["emptyDir"]["sizeLimit"], (name, volume)
        if "restartPolicy" not in pod:  # it serves
            (container,) = pod["containers"]
            assert {"startupProbe", "livenessProbe", "readinessProbe"} <= set(container), name
            waits = int(container["lifecycle"]["preStop"]["exec"]["command"][-1])
            assert waits < pod["terminationGracePeriodSeconds"], name


@needs("kubectl")
@EACH
@SOME
def test_whatever_one_resource_names_is_there(stack: str, profile: str) -> None:
    documents = built(stack, profile)
    names = {(document["kind"], document["metadata"]["name"]) for document in documents}
    for name, pod in pods(documents):
        assert ("ServiceAccount", pod["serviceAccountName"]) in names
        volumes = {volume["name"] for volume in pod["volumes"]}
        for container in (*pod.get("initContainers", ()), *pod["containers"]):
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes, (name, container["name"])
        for volume in pod["volumes"]:
            if found := volume.get("configMap"):
                assert ("ConfigMap", found["name"]) in names, name
            if found := volume.get("persistentVolumeClaim"):
                assert ("PersistentVolumeClaim", found["claimName"]) in names, name
    labels = [
        document["spec"]["template"]["metadata"]["labels"]
        for document in documents
        if document["kind"] in ("Deployment", "StatefulSet", "Job")
    ]
    for document in of_kind(documents, "Service", "PodDisruptionBudget", "NetworkPolicy"):
        selector = document["spec"].get("podSelector") or document["spec"]["selector"]
        wanted = selector.get("matchLabels", selector).items()
        assert any(wanted <= each.items() for each in labels), document["metadata"]["name"]
    (scaler,) = of_kind(documents, "HorizontalPodAutoscaler")
    target = scaler["spec"]["scaleTargetRef"]
    assert (target["kind"], target["name"]) in names
    (scaled,) = [d for d in of_kind(documents, target["kind"]) if d["metadata"]["name"] == target["name"]]
    assert "replicas" not in scaled["spec"], "that is the autoscaler's"
    signal, _ = scaler["spec"]["metrics"]
    (adapter,) = [d for d in of_kind(documents, "ConfigMap") if d["metadata"]["name"] == f"{stack}-adapter"]
    rule, _ = parse_yaml(adapter["data"]["config.yaml"])["rules"]
    assert signal["pods"]["metric"]["name"] == rule["name"]["as"]
    signals = ("labs_waiting", "nv_trt_llm_request_metrics", "nv_inference_pending_request_count")
    places = [rule["metricsQuery"].find(metric) for metric in signals]
    assert -1 not in places and places == sorted(places), "the first that a model has is believed"


@pytest.mark.parametrize("settings", [{}, {"guard": "false"}, {"trace": "otlp://collector:4318"}], ids=str)
@SOME
def test_envoy_itself_takes_its_configuration(stack: str, settings: dict[str, str]) -> None:
    folder = rendered(stack, **settings) / "base"
    assert ("OpenTelemetryConfig" in (folder / "envoy.json").read_text()) == ("trace" in settings)
    assert (envoy.PLACEHOLDER in (folder / "envoy.json").read_text()) == ("guard" not in settings)
    config = str(folder / "envoy.json")
    command = [str(envoy.binary()), *envoy.arguments(config, validate=True)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@needs("kubectl")
def test_a_stack_with_sequences_keeps_its_servers_names_and_envoy_hashes_over_them() -> None:
    (stateful,) = of_kind(built("sequence-batcher", "cpu"), "StatefulSet")
    text = (rendered("sequence-batcher") / "base" / "envoy.json").read_text()
    for number in range(8):
        assert f'"sequence-batcher-triton-{number}.{stateful["spec"]["serviceName"]}"' in text
    assert '"RING_HASH"' in text and '"x-sequence-id"' in text
    assert not of_kind(built("iterative", "cpu"), "StatefulSet")


@SOME
def test_the_repository_that_a_pod_unpacks_is_the_rendered_one(stack: str, tmp_path: Path) -> None:
    session_, choices = session(), Choices()
    lab, name = session_.catalog.stack(stack)
    wanted = tmp_path / "wanted"
    repository.render(replace(targets.plan_for(session_, lab, name, choices, "cpu").request, output=wanted))
    (kept,) = (rendered(stack) / "base").glob("repository")
    # As the kubelet does it: the files below a folder of its own, and a link to each of its entries.
    volume = tmp_path / "rendered"
    shutil.copytree(kept, volume / "..2026_01_01")
    (volume / "..data").symlink_to("..2026_01_01")
    for entry in (volume / "..2026_01_01").iterdir():
        (volume / entry.name).symlink_to(f"..data/{entry.name}")
    models = tmp_path / "models"
    models.mkdir()
    command = kustomize.unpack(wanted).replace("/labs/rendered", str(volume)).replace("/models", str(models))
    subprocess.run(["sh", "-c", command], check=True)
    assert tree(models) == tree(wanted)


def tree(folder: Path) -> dict[str, Any]:
    return {
        str(path.relative_to(folder)): str(path.readlink())
        if path.is_symlink()
        else path.read_bytes()
        if path.is_file()
        else None
        for path in folder.rglob("*")
    }


def test_a_folder_of_somebody_elses_is_refused_and_an_own_one_is_written_anew(tmp_path: Path) -> None:
    opened = session()
    lab, name = opened.catalog.stack("iterative")
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(LabError, match="is not empty"):
        targets.render_for_target(opened, lab, name, Choices(), "kubernetes", tmp_path)
    folder = tmp_path / "new"
    shutil.copytree(rendered("iterative", "swarm"), folder)
    (folder / "left-over.yaml").write_text("")
    (action,) = targets.render_for_target(opened, lab, name, Choices(), "swarm", folder).actions
    action.do(Silent())
    assert not (folder / "left-over.yaml").exists() and (folder / "compose.swarm.yaml").exists()


@pytest.mark.parametrize(
    ("settings", "gpus"),
    [
        ({"engine": "tensorrt-llm", "tp_size": 2}, {"2"}),
        ({"engine": "tensorrt-llm"}, {"1"}),
        ({"engine": "tensorrt-llm", "pp_size": 2, "tp_size": 2}, {"4"}),
    ],
)
def test_a_setting_of_one_profile_changes_its_overlay_and_not_the_other(
    settings: dict[str, Any], gpus: set[str]
) -> None:
    """The base is the cpu profile's, which has no tensor-parallel engine."""
    stack = "inflight-batching"
    with_it, without = rendered(stack, **settings), rendered(stack)
    for path in sorted(without.glob("base/**/*.*")):
        assert (with_it / path.relative_to(without)).read_bytes() == path.read_bytes()
    pod = parse_yaml((with_it / "overlays/gpu/triton-patch.yaml").read_text())["spec"]["template"]["spec"]
    job = parse_yaml((with_it / "overlays/gpu/prepare.yaml").read_text())
    engines = [one for one in job["spec"]["template"]["spec"]["initContainers"] if "limits" in one.get("resources", {})]
    limits = [one["resources"]["limits"].get("nvidia.com/gpu") for one in (*pod["containers"], *engines)]
    assert {str(limit) for limit in limits if limit} == gpus


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"tp_size": 2, "engine": "tensorrt-llm"},
            ["only overlays/gpu has engine, tp_size: the cpu profile does not take it"],
        ),
        ({"engine": "openvino"}, ["only overlays/cpu has engine: the gpu profile does not take it"]),
        ({"batch_scheduler_policy": "max_utilization"}, []),
    ],
)
def test_a_setting_that_one_profile_does_not_take_is_said(settings: dict[str, Any], said: list[str]) -> None:
    opened = session()
    lab, name = opened.catalog.stack("inflight-batching")
    _, notices = targets.plans_for(opened, lab, name, Choices("cpu", settings))
    assert notices == said


@pytest.mark.parametrize("settings", [{"nonsense": 1}, {"tp_size": "x"}, {"tp_size": 2, "nonsense": 1}])
def test_a_setting_that_no_profile_takes_is_refused(settings: dict[str, Any]) -> None:
    opened = session()
    lab, name = opened.catalog.stack("inflight-batching")
    with pytest.raises(LabError, match="cannot be used") as refused:
        targets.plans_for(opened, lab, name, Choices("cpu", settings))
    assert any(str(list(settings)[-1]) in line for line in refused.value.details)


def test_a_value_that_a_targets_setting_cannot_have_is_refused() -> None:
    opened = session()
    lab, name = opened.catalog.stack("iterative")
    with pytest.raises(LabError, match="guard cannot be 'perhaps'"):
        targets.render_for_target(opened, lab, name, Choices(set={"guard": "perhaps"}), "kubernetes", Path("x"))
