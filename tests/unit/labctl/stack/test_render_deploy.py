"""``labctl render --target kubernetes|swarm``: as the golden files say, strictly valid, and the same server."""

from __future__ import annotations

import functools
import itertools
import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import golden_deploy
import kubernetes_validate
import pytest
import yaml
from checkout import ROOT
from golden_deploy import CASES, GOLDEN, Case, built, rendered, session
from kubernetes_validate import utils as validator
from lab_errors import lab_error
from programs import needs
from prometheus_here import prometheus

from labctl import repository
from labctl.options import Options
from labctl.runtimes.envoy import config as envoy
from labctl.stack import deploy

__all__ = ["prometheus"]
VERSIONS = ("1.32.0", "1.36.0")  # the oldest and the newest that are in use
NATIVE = re.compile(r"^(v1|[a-z]+/v\d|[a-z.]+\.k8s\.io/v\d)$")
KUBERNETES = [name for name, case in CASES.items() if case.target == "kubernetes"]
EACH = pytest.mark.parametrize("name", KUBERNETES)
REMEDY = "run tests/golden_deploy.py, and read `git diff`"


@pytest.fixture(scope="module", autouse=True)
def schemas_read_once() -> Iterator[None]:
    """The validator reads the definitions of a version, a megabyte, for each document."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(validator, "schema_contents", functools.cache(validator.schema_contents))
        yield


def pods(documents: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The pods of all that starts any, by the names of what starts them."""
    for document in documents:
        if document["kind"] in ("Deployment", "StatefulSet", "Job"):
            yield document["metadata"]["name"], document["spec"]["template"]["spec"]


def containers(pod: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield from (*pod.get("initContainers", ()), *pod["containers"])


@needs("kubectl", "docker")
@pytest.mark.parametrize("name", CASES)
def test_what_is_rendered_is_as_the_golden_files_say(name: str) -> None:
    found = golden_deploy.texts(name)
    kept = {path.name: path.read_text() for path in (GOLDEN / name).iterdir()}
    assert found == kept, REMEDY


@needs("kubectl")
@EACH
def test_every_resource_is_strictly_valid_in_the_oldest_and_newest_kubernetes(name: str) -> None:
    for document, version in itertools.product(built(name), VERSIONS):
        if NATIVE.match(document["apiVersion"]):
            kubernetes_validate.validate(document, version, strict=True)


@needs("kubectl")
@EACH
def test_pods_are_as_restricted_as_their_namespace_demands_and_have_limits_and_probes(name: str) -> None:
    """The profile "restricted" (kubernetes.io/docs/concepts/security/pod-security-standards), and more."""
    (namespace,) = [one for one in built(name) if one["kind"] == "Namespace"]
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    for owner, pod in pods(built(name)):
        security = pod["securityContext"]
        assert security["runAsNonRoot"] and security["runAsUser"] > 0, owner
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}, owner
        assert pod["automountServiceAccountToken"] is False, owner
        for container in containers(pod):
            where = owner, container["name"]
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }, where
            for part in ("requests", "limits"):
                assert {"cpu", "memory", "ephemeral-storage"} <= set(container["resources"][part]), where
        for volume in pod["volumes"]:
            assert "emptyDir" not in volume or volume["emptyDir"]["sizeLimit"], (owner, volume)
        if "restartPolicy" not in pod:  # it serves
            (container,) = pod["containers"]
            assert {"startupProbe", "livenessProbe", "readinessProbe"} <= set(container), owner
            waits = int(container["lifecycle"]["preStop"]["exec"]["command"][-1])
            assert waits < pod["terminationGracePeriodSeconds"], owner


@needs("kubectl")
@EACH
def test_whatever_a_resource_names_is_there(name: str) -> None:
    documents = built(name)
    names = {(document["kind"], document["metadata"]["name"]) for document in documents}
    for owner, pod in pods(documents):
        assert ("ServiceAccount", pod["serviceAccountName"]) in names
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        used = {mount["name"] for container in containers(pod) for mount in container["volumeMounts"]}
        assert used == volumes.keys(), owner
        wanted = [("ConfigMap", one["configMap"]["name"]) for one in volumes.values() if "configMap" in one]
        wanted += [("Secret", one["secret"]["secretName"]) for one in volumes.values() if "secret" in one]
        claims = [one["persistentVolumeClaim"] for one in volumes.values() if "persistentVolumeClaim" in one]
        wanted += [("PersistentVolumeClaim", claim["claimName"]) for claim in claims]
        sources = [source for container in containers(pod) for source in container.get("envFrom", ())]
        wanted += [("ConfigMap", source["configMapRef"]["name"]) for source in sources]
        assert set(wanted) <= names, owner
        (cache,) = [volume for key, volume in volumes.items() if key == "cache"] or [{}]
        assert "emptyDir" not in cache or ("PersistentVolumeClaim", "cache") not in names, "it reads the weights"
    templates = [one["spec"]["template"] for one in documents if one["kind"] in ("Deployment", "StatefulSet", "Job")]
    labels = [template["metadata"]["labels"].items() for template in templates]
    for document in documents:
        if document["kind"] in ("Service", "PodDisruptionBudget", "NetworkPolicy"):
            selector = document["spec"].get("podSelector") or document["spec"]["selector"]
            wanted_labels = selector.get("matchLabels", selector).items()
            assert any(wanted_labels <= each for each in labels), document["metadata"]["name"]
        if document["kind"] == "HorizontalPodAutoscaler":
            target = document["spec"]["scaleTargetRef"]
            assert (target["kind"], target["name"]) in names
            assert document["spec"]["maxReplicas"] == deploy.MOST_SERVERS, "Envoy's configuration has a name for each"
    for document in documents:
        if (document["kind"], document["metadata"]["name"]) == ("StatefulSet", "triton"):
            assert "replicas" not in document["spec"], "that is the autoscaler's"


def test_a_container_of_compose_of_kubernetes_and_of_swarm_has_the_same_folders_and_user() -> None:
    compose = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]["triton"]
    swarm = yaml.safe_load((ROOT / "deploy/swarm/stack.yaml").read_text())["services"]["triton"]
    folder = ROOT / "deploy" / "kubernetes" / "base"
    pod = next(yaml.safe_load_all((folder / "triton.yaml").read_text()))["spec"]["template"]["spec"]
    wanted = {one["target"]: one.get("read_only", False) for one in compose["volumes"]}
    scratch = {"/tmp": False, "/dev/shm": False}
    (container,) = pod["containers"]
    mounted = {one["mountPath"]: one.get("readOnly", False) for one in container["volumeMounts"]}
    assert mounted == {**wanted, **scratch, "/labs/repository": True}
    writable = {"/labs/run": False}
    assert {one["target"]: one.get("read_only", False) for one in swarm["volumes"]} == {**wanted, **scratch, **writable}
    user = f"{pod['securityContext']['runAsUser']}:{pod['securityContext']['runAsGroup']}"
    assert user == swarm["user"] and compose["user"].endswith(f":-{user}}}")


@pytest.mark.parametrize("name", ["kubernetes/iterative", "kubernetes/sequence-batcher"])
def test_the_repository_that_a_pod_unpacks_is_the_rendered_one(name: str, tmp_path: Path) -> None:
    opened, case, wanted = session(), CASES[name], tmp_path / "wanted"
    lab, stack = opened.catalog.stack(case.stack)
    repository.render_repository(replace(deploy._plan(opened, lab, stack, case.options).request, output=wanted))
    files = yaml.safe_load((rendered(name) / "kustomization.yaml").read_text())["configMapGenerator"][1]["files"]
    # As the kubelet does it: the files below a folder of its own, and a link to each of them.
    volume, models = tmp_path / "volume", tmp_path / "models"
    (volume / "..2026_01_01").mkdir(parents=True)
    (volume / "..data").symlink_to("..2026_01_01")
    for file in files:
        key, _, source = file.rpartition("=")
        key = key or source
        shutil.copyfile(rendered(name) / source, volume / "..data" / key)
        (volume / key).symlink_to(f"..data/{key}")
    for place in (models, tmp_path / "checkout", tmp_path / "shipped"):
        place.mkdir()
    manifest = next(yaml.safe_load_all((ROOT / "deploy/kubernetes/base/triton.yaml").read_text()))
    (script,) = manifest["spec"]["template"]["spec"]["initContainers"][0]["args"]
    places = {
        "/labs/checkout/labs/shared/models": str(tmp_path / "checkout"),
        "/labs/models": str(tmp_path / "shipped"),
        "/labs/repository": str(volume),
        "/models/": f"{models}/",
    }
    script = re.sub("|".join(places), lambda found: places[found[0]], script)
    subprocess.run(["sh", "-euc", script], check=True, capture_output=True)
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


@pytest.mark.parametrize("name", CASES)
def test_envoy_itself_takes_its_configuration(name: str) -> None:
    config = rendered(name) / "envoy.json"
    assert config.stat().st_mode & 0o777 == 0o600 and (rendered(name) / "token").read_text() in config.read_text()
    command = [str(envoy.binary()), *envoy.envoy_arguments(str(config), validate=True)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def render(folder: Path, case: Case) -> Path:
    opened = session()
    lab, stack = opened.catalog.stack(case.stack)
    deploy.render_deployment(opened, lab, stack, case.options, case.target, case.registry, folder)
    return folder


def test_a_folder_of_somebody_elses_is_refused_and_an_own_one_is_written_anew_with_its_token(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    case = CASES["swarm/iterative"]
    with lab_error("output-not-empty"):
        render(tmp_path, case)
    folder = render(tmp_path / "new", case)
    token = (folder / "token").read_text()
    (folder / "left-over.yaml").write_text("")
    render(folder, case)
    assert not (folder / "left-over.yaml").exists() and (folder / "token").read_text() == token
    assert token != (render(tmp_path / "other", case) / "token").read_text()


@pytest.mark.parametrize(
    ("name", "damage"), [(deploy.MARK, b"{"), (deploy.MARK, b"[1]"), (deploy.MARK, b"{}"), ("token", b"\xff")]
)
def test_a_file_of_the_last_rendering_that_cannot_be_read_is_named(name: str, damage: bytes, tmp_path: Path) -> None:
    folder = render(tmp_path / "out", CASES["swarm/iterative"])
    (folder / name).write_bytes(damage)
    with lab_error("deploy-file-unreadable", str(folder / name)):
        render(folder, CASES["swarm/iterative"])


def test_a_second_rendering_keeps_the_namespace_and_the_components_that_a_person_lists(tmp_path: Path) -> None:
    path = render(tmp_path / "out", CASES["kubernetes/iterative"]) / "kustomization.yaml"
    theirs = ["kubernetes/components/door", "../mine"]
    text = path.read_text().replace("- kubernetes/components/replicas", "\n".join(f"- {name}" for name in theirs))
    path.write_text(text.replace("namespace: iterative", "namespace: team-a"))
    render(tmp_path / "out", replace(CASES["kubernetes/iterative"], profile="gpu"))
    assert "kubernetes/components/gpu" in yaml.safe_load(path.read_text())["components"]
    render(tmp_path / "out", CASES["kubernetes/iterative"])
    document = yaml.safe_load(path.read_text())
    assert document["components"] == ["kubernetes/components/guard", *theirs]
    assert document["namespace"] == "team-a"
    path.write_text("components: [")
    with lab_error("deploy-file-unreadable"):
        render(tmp_path / "out", CASES["kubernetes/iterative"])


def test_a_job_of_one_name_is_always_the_same_job(tmp_path: Path) -> None:
    """Kubernetes refuses a second apply with another template under that name."""
    case = CASES["kubernetes/gpu"]

    def job(folder: str, asked: Case) -> str:
        patches = yaml.safe_load((render(tmp_path / folder, asked) / "kustomization.yaml").read_text())["patches"]
        return str(yaml.safe_load(patches[-1]["patch"])[-1]["value"])

    first = job("first", case)
    others = [replace(case, registry="registry.example.com"), replace(case, settings={"model": "random:tiny-llama"})]
    assert job("again", case) == first
    assert len({first, *(job(f"other-{number}", other) for number, other in enumerate(others))}) == 3


@pytest.mark.parametrize(
    ("target", "settings", "code"),
    [
        ("kubernetes", {"engine": "tensorrt-llm"}, "template-missing"),
        ("swarm", {"engine": "tensorrt-llm"}, "template-missing"),
        ("swarm", {"engine": "tensorrt-llm", "tp_size": 2}, "swarm-spread"),
    ],
)
def test_what_cannot_be_rendered_is_refused_with_a_way_out(
    target: str, settings: dict[str, Any], code: str, tmp_path: Path
) -> None:
    with lab_error(code):
        render(tmp_path / "out", Case(target, "inflight-batching", "gpu", settings))
    assert not (tmp_path / "out").exists()


def test_each_of_the_autoscalers_signals_is_one_number_for_a_pod(prometheus: Path, tmp_path: Path) -> None:
    folder = ROOT / "deploy" / "kubernetes" / "components" / "replicas"
    scaler = yaml.safe_load((folder / "autoscaler.yaml").read_text())["spec"]["metrics"]
    rules = yaml.safe_load(yaml.safe_load((folder / "adapter.yaml").read_text())["data"]["config.yaml"])["rules"]
    assert [one["pods"]["metric"]["name"] for one in scaler] == [rule["name"]["as"] for rule in rules]
    counted = {"waiting": [("a", 3), ("b", 4)], "requests": [("a", 4), ("b", 1)], "good": [("a", 3), ("b", 1)]}
    gauges = [{"series": f'labs_waiting{{namespace="n",pod="{pod}",model="m"}}', "values": f"{value}x9"}
              for pod, value in counted["waiting"]]  # fmt: skip
    counters = [{"series": f'labs_slo_{name}_total{{namespace="n",pod="{pod}"}}', "values": f"0+{value}x9"}
                for name in ("requests", "good") for pod, value in counted[name]]  # fmt: skip
    expected: tuple[dict[str, float], ...] = ({"a": 3, "b": 4}, {"a": 0.25, "b": 0})
    fill = {"<<.GroupBy>>": "pod", "<<.LabelMatchers>>": 'namespace="n",pod=~"a|b"'}
    queries = [
        re.sub("|".join(map(re.escape, fill)), lambda found: fill[found[0]], one["metricsQuery"]) for one in rules
    ]
    test = {
        "evaluation_interval": "10s",
        "tests": [
            {
                "interval": "10s",
                "input_series": gauges + counters,
                "promql_expr_test": [
                    {
                        "expr": f"round(1000 * ({query}))",
                        "eval_time": "60s",
                        "exp_samples": [
                            {"labels": f'{{pod="{pod}"}}', "value": 1000 * value} for pod, value in values.items()
                        ],
                    }
                    for query, values in zip(queries, expected, strict=True)
                ],
            }
        ],
    }
    (tmp_path / "test.yaml").write_text(json.dumps(test))
    command = [str(prometheus / "promtool"), "test", "rules", str(tmp_path / "test.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_dashboards_of_the_component_are_those_of_compose() -> None:
    component = yaml.safe_load((ROOT / "deploy/kubernetes/components/observe/kustomization.yaml").read_text())
    (generator,) = component["configMapGenerator"]
    names = {path.name for path in (ROOT / "docker/observe/dashboards").glob("*.json")}
    assert {Path(file).name for file in generator["files"]} == names


def test_the_servers_arguments_for_swarm_are_those_for_kubernetes() -> None:
    lines = (rendered("swarm/iterative") / "stack.env").read_text().splitlines()
    (text,) = [line.partition("=")[2] for line in lines if line.startswith("LABS_SERVER_ARGS=")]
    patches = yaml.safe_load((rendered("kubernetes/iterative") / "kustomization.yaml").read_text())["patches"]
    assert shlex.split("".join(shlex.split(text))) == yaml.safe_load(patches[0]["patch"])[0]["value"]


def test_a_rendered_choice_of_gpus_is_left_to_the_clusters_scheduler() -> None:
    opened = session()
    lab, stack = opened.catalog.stack("inflight-batching")
    assert deploy._plan(opened, lab, stack, Options("gpu", gpus=("3",))).gpus == ()
