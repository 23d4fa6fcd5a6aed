"""Prometheus and Grafana as files: dashboards, rules, what Compose would run."""

from __future__ import annotations

import dataclasses
import json
import re
import socket
from pathlib import Path
from typing import Any

import fake_backend  # noqa: F401  without it no module of a model can be imported
import pytest
import yaml
from board_tables import dashboards
from checkout import ROOT
from lab_errors import lab_error

from labctl.options import Options
from labctl.runtimes.local import LocalRuntime
from labctl.runtimes.record import Endpoints, Record, Replica
from labctl.stack import observe
from labctl.stack.session import Session
from labctl.workspace import Workspace
from labserve.observe.gauges import METRICS

OBSERVE = ROOT / "docker" / "observe"
FILES = sorted((OBSERVE / "dashboards").glob("*.json"))
NAME = re.compile(r"\b(labs_\w+|nv_\w+|envoy_\w+|labs:[\w:]+|triton:[\w:]+)\b(?=[{\[) ]|$)")
TRITONS = {  # of Triton 2.51: the others of its names are gone, or never were
    "nv_inference_count",
    "nv_inference_exec_count",
    "nv_inference_request_success",
    "nv_inference_request_failure",
    "nv_inference_request_duration_us",
    "nv_inference_queue_duration_us",
    "nv_inference_compute_infer_duration_us",
    "nv_inference_pending_request_count",
    # tensorrtllm_backend v0.19.0, inflight_batcher_llm/src/custom_metrics_reporter/custom_metrics_reporter.cc:169,182
    "nv_trt_llm_request_metrics",
    "nv_trt_llm_kv_cache_block_metrics",
}


def rules() -> list[dict[str, Any]]:
    document = yaml.safe_load((OBSERVE / "rules.yaml").read_text())
    return [rule for group in document["groups"] for rule in group["rules"]]


def unknown(expression: str) -> list[str]:
    """Names in an expression that nothing of ours, of Triton's or of Envoy's is called."""
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    parts = {f"labs_{name}{end}" for name in METRICS for end in ("", "_bucket", "_sum", "_count")}
    return [
        name
        for name in NAME.findall(expression)
        if name not in recorded | parts | TRITONS and not name.startswith("envoy_")
    ]


@pytest.mark.parametrize("name", dashboards.DASHBOARDS)
def test_a_dashboards_file_is_what_its_table_says(name: str) -> None:
    assert (OBSERVE / "dashboards" / f"{name}.json").read_text() == dashboards.text(name), (
        "python scripts/dashboards.py"
    )


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_dashboard_is_whole_and_asks_for_metrics_that_exist(path: Path) -> None:
    board = json.loads(path.read_text())
    (source,) = yaml.safe_load((OBSERVE / "grafana/provisioning/datasources/labs.yaml").read_text())["datasources"]
    assert board["panels"] and board["uid"] and board["schemaVersion"] >= 39
    places = set()
    for panel in board["panels"]:
        assert panel["datasource"] == {"type": "prometheus", "uid": source["uid"]}
        assert panel["type"] in ("timeseries", "heatmap") and panel["targets"], panel["title"]
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24 and (place["x"], place["y"]) not in places
        places.add((place["x"], place["y"]))
        for target in panel["targets"]:
            assert unknown(target["expr"]) == [], panel["title"]
            assert set(re.findall(r"\$(\w+)", target["expr"])) <= {"model", "replica", "__rate_interval"}
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


def services() -> dict[str, Any]:
    """compose.yaml's, with its variables as they are written: a port on loopback says so itself."""
    found: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
    return found


def test_every_dashboard_is_provisioned_and_titles_are_told_apart() -> None:
    (provider,) = yaml.safe_load((OBSERVE / "grafana/provisioning/dashboards/labs.yaml").read_text())["providers"]
    mounts = {mount["target"]: mount["source"] for mount in services()["grafana"]["volumes"]}
    assert ROOT / mounts[provider["options"]["path"]] == OBSERVE / "dashboards"
    assert [path.stem for path in FILES] == sorted(dashboards.DASHBOARDS)


def test_rules_ask_for_metrics_that_exist_and_each_alert_has_words_for_a_person() -> None:
    for rule in rules():
        assert unknown(rule["expr"]) == [], rule
        assert "record" in rule or rule["annotations"]["summary"]
    tested = (OBSERVE / "rules.test.yaml").read_text()
    assert [rule["alert"] for rule in rules() if "alert" in rule and rule["alert"] not in tested] == []


def test_the_runbook_of_each_alert_is_a_section_that_exists() -> None:
    for rule in (rule for rule in rules() if "alert" in rule):
        path, _, section = rule["annotations"]["runbook"].partition("#")
        headings = re.findall(r"^#+ (.+)$", (ROOT / path).read_text(), re.MULTILINE)
        assert section == rule["alert"].lower() and rule["alert"] in headings


def test_both_listen_on_loopback_alone_and_are_bounded_and_grafana_lets_nobody_in_unknown() -> None:
    for name in ("prometheus", "grafana"):
        service = services()[name]
        assert service["profiles"] == ["observe"]
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])
        assert service["mem_limit"] and service["read_only"] and service["cap_drop"] == ["ALL"]
        assert re.fullmatch(r"\$\{STACK_\w+:-[\w./]+:v?\d[\w.]*\}", service["image"]), "of one version"
    settings = services()["grafana"]["environment"]
    assert settings["GF_AUTH_ANONYMOUS_ENABLED"] == "false"
    assert settings["GF_SECURITY_ADMIN_PASSWORD__FILE"].startswith("/run/secrets/")
    assert any("retention.size" in word for word in services()["prometheus"]["command"])


HERE = Endpoints("127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3")
RECORD = Record("iterative", "02", "local", "cpu", {}, ["m"], HERE)


def test_a_machine_without_prometheus_is_told_where_it_comes_from(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with lab_error("prometheus-missing"):
        observe.as_process(Workspace(ROOT, tmp_path), RECORD, {"Prometheus": 9090})


def scraped(config: dict[str, Any]) -> dict[str, list[str]]:
    """The targets of each job, as Prometheus reads them."""
    found = {}
    for job in config["scrape_configs"]:
        (files,) = job["file_sd_configs"]
        (group,) = json.loads(Path(files["files"][0]).read_text())
        found[job["job_name"]] = group["targets"]
    return found


def test_replicas_that_come_later_are_scraped_too(session: Session) -> None:
    session.workspace.folder("iterative").observe.mkdir(parents=True)
    config = observe.local_config(session.workspace, RECORD)
    observe.follow_servers(session.workspace, RECORD)
    assert scraped(config) == {"triton": ["127.0.0.1:3"], "envoy": []}
    servers = [Replica(n, Endpoints(f"127.0.0.1:{n}1", f"127.0.0.1:{n}2", f"127.0.0.1:{n}3")) for n in (1, 2)]
    observe.follow_servers(session.workspace, dataclasses.replace(RECORD, balance="l7", servers=servers))
    assert scraped(config) == {"triton": ["127.0.0.1:13", "127.0.0.1:23"], "envoy": ["127.0.0.1:3"]}


@pytest.mark.parametrize(
    ("runtime", "grafana", "wanted"),
    [
        ("local", "", {"Prometheus": 9090}),
        ("compose", "", {"Prometheus": 9090, "Grafana": 3000}),
        ("compose", "none", {"Prometheus": 9090}),
    ],
)
def test_only_the_ports_of_what_is_started_are_asked_for(
    monkeypatch: pytest.MonkeyPatch, runtime: str, grafana: str, wanted: dict[str, int]
) -> None:
    monkeypatch.setenv("LABS_GRAFANA_IMAGE", grafana)
    assert observe._ports(runtime, Options()) == wanted
    free = observe._ports(runtime, Options(ports="auto"))
    assert free.keys() == wanted.keys() and not set(free.values()) & {9090, 3000}


def test_a_port_that_is_taken_is_named_as_prometheuss(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        monkeypatch.setattr(observe, "USUAL", {"Prometheus": port, "Grafana": port})
        with lab_error("port-taken", f"Prometheus port {port}") as refused:
            observe.start_monitoring(session, LocalRuntime(session.workspace), RECORD, Options())
    assert "Grafana" not in refused.value.why


def test_on_the_local_runtime_it_scrapes_the_stacks_own_address(tmp_path: Path) -> None:
    config = observe.local_config(Workspace(ROOT, tmp_path), RECORD)
    assert "dns_sd_configs" not in json.dumps(config)
    assert all(Path(path).is_file() for path in config["rule_files"])
