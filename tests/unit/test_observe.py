"""Prometheus and Grafana as files: dashboards, rules, what Compose would run."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import fake_backend  # noqa: F401  without it no module of a model can be imported
import pytest
import yaml
from board_tables import dashboards

from labctl.errors import LabError
from labctl.runtimes import observers
from labctl.runtimes.base import Endpoints, Record
from labctl.runtimes.targets import composed
from labctl.workspace import Workspace
from labserve.gauges import METRICS

ROOT = Path(__file__).resolve().parents[2]
OBSERVE = ROOT / "observe"
FILES = sorted((OBSERVE / "dashboards").glob("*.json"))
NAME = re.compile(r"\b(labs_\w+|nv_\w+|envoy_\w+|labs:[\w:]+|triton:[\w:]+)\b(?=[{\[) ]|$)")
TRITONS = {  # of Triton 2.51: the others of its names are gone, or never were
    "nv_inference_count", "nv_inference_exec_count", "nv_inference_request_success", "nv_inference_request_failure",
    "nv_inference_request_duration_us", "nv_inference_queue_duration_us", "nv_inference_compute_infer_duration_us",
    "nv_inference_pending_request_count",
}  # fmt: skip


def rules() -> list[dict[str, Any]]:
    document = yaml.safe_load((OBSERVE / "rules.yaml").read_text())
    return [rule for group in document["groups"] for rule in group["rules"]]


def unknown(expression: str) -> list[str]:
    """Names in an expression that nothing of ours, of Triton's or of Envoy's is called."""
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    parts = {f"labs_{name}{end}" for name in METRICS for end in ("", "_bucket", "_sum", "_count")}
    return [name for name in NAME.findall(expression)
            if name not in recorded | parts | TRITONS and not name.startswith("envoy_")]  # fmt: skip


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


def test_every_dashboard_is_provisioned_and_titles_are_told_apart() -> None:
    (provider,) = yaml.safe_load((OBSERVE / "grafana/provisioning/dashboards/labs.yaml").read_text())["providers"]
    services = composed.services([ROOT / "compose.yaml"], {}, ROOT)
    mounts = {mount["target"]: mount["source"] for mount in services["grafana"]["volumes"]}
    assert mounts[provider["options"]["path"]] == str(OBSERVE / "dashboards")
    assert [path.stem for path in FILES] == sorted(dashboards.DASHBOARDS)


def test_rules_ask_for_metrics_that_exist_and_each_alert_has_words_for_a_person() -> None:
    for rule in rules():
        assert unknown(rule["expr"]) == [], rule
        assert "record" in rule or rule["annotations"]["summary"]
    tested = (OBSERVE / "rules.test.yaml").read_text()
    assert [rule["alert"] for rule in rules() if "alert" in rule and rule["alert"] not in tested] == []


def test_both_listen_on_loopback_alone_and_are_bounded_and_grafana_lets_nobody_in_unknown() -> None:
    services = composed.services([ROOT / "compose.yaml"], {"LABS_BIND": "0.0.0.0"}, ROOT)
    for name in ("prometheus", "grafana"):
        service = services[name]
        assert service["profiles"] == ["observe"]
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])
        assert service["mem_limit"] and service["read_only"] and service["cap_drop"] == ["ALL"]
        assert not service["image"].endswith("latest") and ":" in service["image"]
    settings = services["grafana"]["environment"]
    assert settings["GF_AUTH_ANONYMOUS_ENABLED"] == "false"
    assert settings["GF_SECURITY_ADMIN_PASSWORD__FILE"].startswith("/run/secrets/")
    assert any("retention.size" in word for word in services["prometheus"]["command"])


RECORD = Record(stack="iterative", lab="02", runtime="local", profile="cpu", settings={}, models=["m"],
                endpoints=Endpoints("127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"))  # fmt: skip


def test_a_machine_without_prometheus_is_told_where_it_comes_from(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LabError, match="not installed") as refused:
        observers.as_process(Workspace(ROOT, tmp_path), RECORD, 9090)
    assert "apt-get install prometheus" in refused.value.remedy


def test_on_the_local_runtime_it_scrapes_the_stacks_own_address(tmp_path: Path) -> None:
    config = observers.local_config(Workspace(ROOT, tmp_path), RECORD)
    assert config["scrape_configs"][0]["static_configs"] == [{"targets": ["127.0.0.1:3"]}]
    assert "dns_sd_configs" not in json.dumps(config)
    assert all(Path(path).is_file() for path in config["rule_files"])
