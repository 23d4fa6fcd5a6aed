"""``labctl render --target kubernetes --set ...``: what clusters differ in, and what a second apply meets."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from programs import needs
from prometheus_here import prometheus
from rendered_targets import ROOT, built, of_kind, pods, rendered, session

from labctl.deploy import stack
from labctl.listener import Silent
from labctl.runtimes import images
from labctl.runtimes.record import Choices
from labctl.stack import targets
from labctl.stack.targets import images_to_build
from labkit.errors import LabError
from labkit.strict_yaml import parse_yaml

__all__ = ["prometheus"]
LLM = "inflight-batching"
PRODUCT = "nvidia.com/gpu.product"


def test_a_placeholder_without_a_value_is_refused_with_its_line_and_an_empty_value_leaves_its_key_out() -> None:
    with pytest.raises(LabError, match=r"swarm\.yaml cannot be filled") as refused:
        stack.fill("swarm.yaml", {"stack": "iterative"})
    assert any("swarm.yaml:6: image: no value is given" in line for line in refused.value.details)
    text = 'a: ""\nb: [{name: ""}]\nc: {}\nd: []\ne: {f: null, g: 0, h: false}\n'
    assert stack.parse(text) == {"c": {}, "d": [], "e": {"g": 0, "h": False}}


def jobs(folder: Path) -> dict[str, Any]:
    """The Jobs of both overlays, by name."""
    documents = (parse_yaml(path.read_text()) for path in folder.glob("overlays/*/prepare.yaml"))
    return {document["metadata"]["name"]: document["spec"] for document in documents}


def test_a_job_of_one_name_is_always_the_same_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its template cannot be changed: a second apply with another template under that name is refused."""
    opened = session()
    lab, name = opened.catalog.stack(LLM)

    def render(folder: str, **settings: str) -> dict[str, Any]:
        (action,) = targets.render_for_target(
            opened, lab, name, Choices(set=settings), "kubernetes", tmp_path / folder
        ).actions
        action.do(Silent())
        return jobs(tmp_path / folder)

    first, again = render("first"), render("again")
    other = render("other", model="random:tiny-llama")
    elsewhere = render("elsewhere", pull_secret="registry", gpu_product="NVIDIA-L4")
    monkeypatch.setattr(images, "files_image", lambda workspace: "labs-files:of-other-sources")
    rebuilt = render("rebuilt")
    assert first == again and len(first) == 2
    for changed in (other, elsewhere, rebuilt):
        assert len(changed) == 2 and not set(changed) & set(first), "another template has another name"
    assert all(spec["ttlSecondsAfterFinished"] > 0 for spec in first.values()), "old ones go by themselves"


@needs("kubectl")
@pytest.mark.parametrize("settings", [{}, {"gpu_product": "NVIDIA-H100-80GB-HBM3"}], ids=str)
def test_job_and_servers_run_on_tainted_gpu_nodes_of_one_kind(settings: dict[str, str]) -> None:
    engine = {"engine": "tensorrt-llm"}  # its job builds on a GPU
    found = [pod for name, pod in pods(built(LLM, "gpu", **engine, **settings)) if not name.endswith("-envoy")]
    assert len(found) == 2
    (labels,) = [
        d["spec"]["template"]["metadata"]["labels"]
        for d in of_kind(built(LLM, "gpu", **engine), "Deployment")
        if d["metadata"]["name"] == f"{LLM}-triton"
    ]
    for pod in found:
        assert pod["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
        if settings:
            assert pod["nodeSelector"] == {PRODUCT: settings["gpu_product"]} and "affinity" not in pod
        else:
            (term,) = pod["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
            assert term["topologyKey"] == PRODUCT and term["labelSelector"]["matchLabels"].items() <= labels.items()
    assert all("tolerations" not in pod for _, pod in pods(built(LLM, "cpu")))


@needs("kubectl")
def test_names_of_a_cluster_are_where_kubernetes_looks_for_them() -> None:
    names = {
        "priority_class": "high",
        "pull_secret": "registry",
        "storage_class": "nfs",
        "cpu_request": "500m",
        "gpu_product": "NVIDIA-L4",
    }
    for document in of_kind(built(LLM, "gpu", **names), "Deployment", "Job", "PersistentVolumeClaim"):
        kubernetes_validate.validate(document, "1.36.0", strict=True)
    documents = built(LLM, "cpu", **names)
    for _, pod in pods(documents):
        assert (pod["priorityClassName"], pod["imagePullSecrets"]) == ("high", [{"name": "registry"}])
    (claim,) = of_kind(documents, "PersistentVolumeClaim")
    assert claim["spec"]["storageClassName"] == "nfs"
    (server,) = [pod for name, pod in pods(documents) if name == f"{LLM}-triton"]
    assert server["containers"][0]["resources"]["requests"]["cpu"] == "500m"
    assert not any({"priorityClassName", "imagePullSecrets"} & set(pod) for _, pod in pods(built(LLM, "cpu")))


@needs("kubectl")
@pytest.mark.parametrize("profile", ["cpu", "gpu"])
def test_images_build_makes_each_image_of_an_overlay_and_pushes_it_where_the_overlay_pulls_it(profile: str) -> None:
    opened, registry = session(), "registry.example.com:5000/labs"
    lab, name = opened.catalog.stack(LLM)
    for chosen in ("", registry):
        documents = built(LLM, profile, **({"registry": chosen} if chosen else {}))
        asked = {c["image"] for _, pod in pods(documents) for c in (*pod.get("initContainers", ()), *pod["containers"])}
        todo, names = images_to_build(opened, lab, name, Choices(profile), chosen)
        assert asked <= set(names) and len(names) == (3 if profile == "cpu" else 4)
        pushed = {
            command.argv[-1]
            for action in todo.actions
            for command in action.commands
            if command.argv[:2] == ("docker", "push")
        }
        assert pushed == (set(names) if chosen else set())


@needs("kubectl")
def test_network_policies_let_spans_reach_the_receiver_that_trace_names() -> None:
    for trace in ("", "otlp://collector.observability:4319"):
        documents = built("iterative", "cpu", **{"trace": trace} if trace else {})
        for part in ("triton", "envoy"):
            (policy,) = [d for d in of_kind(documents, "NetworkPolicy") if d["metadata"]["name"] == f"iterative-{part}"]
            ports = [port["port"] for rule in policy["spec"]["egress"] if "to" not in rule for port in rule["ports"]]
            assert (4319 in ports) == bool(trace), part
            assert not trace or 53 in ports, "the receiver has a name"


@needs("kubectl")
@pytest.mark.parametrize(("stack", "fronts"), [(LLM, 2), ("iterative", 1)])
def test_envoys_container_runs_the_judge_and_one_judge_alone_remembers_sequence_ids(stack: str, fronts: int) -> None:
    for guard, replicas in (("true", fronts), ("false", 2)):
        (envoy,) = [
            d
            for d in of_kind(built(stack, "cpu", guard=guard), "Deployment")
            if d["metadata"]["name"] == f"{stack}-envoy"
        ]
        (container,) = envoy["spec"]["template"]["spec"]["containers"]
        assert ("labctl.runtimes.envoy.container" in container["command"]) == (guard == "true")
        assert envoy["spec"]["replicas"] == replicas


@needs("kubectl")
def test_resources_of_operators_are_there_only_where_the_cluster_has_them() -> None:
    plain = {document["kind"] for document in built("iterative", "cpu")}
    assert not plain & {"PodMonitor", "PrometheusRule", "ScaledObject"}
    documents = built("iterative", "cpu", prometheus_release="kps", keda="http://prometheus.monitoring:9090")
    assert not of_kind(documents, "HorizontalPodAutoscaler"), "KEDA makes its own"
    monitor, rule, scaled = (of_kind(documents, kind)[0] for kind in ("PodMonitor", "PrometheusRule", "ScaledObject"))
    assert monitor["metadata"]["labels"]["release"] == rule["metadata"]["labels"]["release"] == "kps"
    assert rule["spec"]["groups"] == parse_yaml((ROOT / "docker" / "observe" / "rules.yaml").read_text())["groups"]
    for deployment in of_kind(documents, "Deployment"):  # both are scraped, under the names that the rules know
        template = deployment["spec"]["template"]
        assert monitor["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
        assert template["metadata"]["labels"][monitor["spec"]["jobLabel"]] in ("triton", "envoy")
        (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
        assert endpoint["port"] in [port["name"] for port in template["spec"]["containers"][0]["ports"]]
    target = scaled["spec"]["scaleTargetRef"]
    assert target["name"] in [d["metadata"]["name"] for d in of_kind(documents, target["kind"])]
    boards = [d for d in of_kind(documents, "ConfigMap") if "grafana_dashboard" in d["metadata"].get("labels", {})]
    (board,) = boards
    assert {Path(name).stem for name in board["data"]} == {
        p.stem for p in (ROOT / "docker/observe/dashboards").glob("*.json")
    }
    assert all(json.loads(text)["panels"][0]["datasource"]["uid"] == "prometheus" for text in board["data"].values())


def test_each_query_of_keda_is_one_number_and_prometheus_reads_it(prometheus: Path) -> None:
    folder = rendered("iterative", keda="http://prometheus.monitoring:9090") / "base"
    waiting, late = parse_yaml((folder / "autoscaler.yaml").read_text())["spec"]["triggers"]
    pods = (("iterative-triton-1", 3), ("iterative-triton-2", 4), ("other-triton-1", 50))
    counted = [("requests", "iterative-triton-1", 3), ("requests", "iterative-triton-2", 1)]
    counted += [("good", "iterative-triton-1", 2), ("good", "iterative-triton-2", 1), ("requests", "other-triton-1", 9)]
    test = {
        "evaluation_interval": "10s",
        "tests": [
            {
                "interval": "10s",
                "input_series": [
                    {"series": f'labs_waiting{{namespace="n",pod="{pod}",model="m"}}', "values": f"{value}x9"}
                    for pod, value in pods
                ]
                + [
                    {"series": f'labs_slo_{name}_total{{pod="{pod}",class="default"}}', "values": f"0+{value}x9"}
                    for name, pod, value in counted
                ],
                "promql_expr_test": [
                    {
                        "expr": f"round(1000 * ({trigger['metadata']['query']}))",
                        "eval_time": "60s",
                        "exp_samples": [{"labels": "{}", "value": value}],
                    }
                    for trigger, value in ((waiting, 7000), (late, 250))
                ],
            }
        ],
    }
    (folder / "keda.test.yaml").write_text(json.dumps(test))
    command = [str(prometheus / "promtool"), "test", "rules", str(folder / "keda.test.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
