"""Goodput while a stack serves: what models count, what the live page shows, and what the autoscaler makes of it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from checkout import ROOT
from click.testing import CliRunner
from fake_backend import METRICS as SHOWN
from fake_backend import Request
from lab_errors import is_lab_error, lab_error

from labctl.catalog import load_catalog
from labctl.cli.main import cli
from labctl.options import Options
from labctl.pages.live.counters import LiveCounters
from labctl.plan import make_plan
from labctl.replicas import signals
from labctl.replicas import signals as kit
from labctl.replicas.scale import Scaler
from labctl.replicas.signals import GoodputMeter, Rate
from labctl.runtimes.record import Endpoints, Record, Replica
from labctl.workspace import Workspace
from labkit.client import metrics
from labserve.observe import gauges
from labserve.observe.gauges import Gauges

Answer = Callable[..., None]


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> Answer:
    """Let a model answer a request: ms to its first token, ms for each of four others, why it ended, its parameters."""
    now = [100.0]
    monkeypatch.setattr(gauges, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def one(model: str, ttft: float, tpot: float, why: str = "length", **parameters: object) -> None:
        shown = Gauges(model)
        shown.arrived("a", shown.life(Request({}, json.dumps(parameters)), now[0]))
        for number in range(5):
            now[0] += (tpot if number else ttft) / 1e3
            shown.step(["a"], "d" if number else "p", [1], [1])
        now[0] += 5  # it is not the time of its last line
        shown.gone("a", why)
        shown.close()

    monkeypatch.setenv("LABS_SLO", "ttft<500ms,tpot<60ms")
    return one


def counted(model: str, kind: str) -> tuple[float, float]:
    return tuple(SHOWN[f"labs_slo_{name}_total {model} {kind}"].total for name in ("good", "requests"))  # type: ignore[return-value]


@pytest.mark.parametrize(("ttft", "tpot", "good"), [(400, 50, 1), (600, 50, 0), (400, 70, 0)])
def test_a_request_is_good_where_it_meets_both_limits(ttft: float, tpot: float, good: int, answer: Answer) -> None:
    model = f"both-{ttft}-{tpot}"
    answer(model, ttft, tpot)
    assert counted(model, "default") == (good, 1)


@pytest.mark.parametrize(
    ("parameters", "kind"),
    [({"tenant": "ann", "request_priority": 1}, "ann"), ({"request_priority": 2}, "priority 2"), ({}, "default")],
)
def test_a_class_is_the_tenant_else_the_priority(parameters: dict[str, object], kind: str, answer: Answer) -> None:
    model = f"class-{kind}"
    answer(model, 1, 1, **parameters)
    assert counted(model, kind) == (1, 1)


def test_a_request_that_failed_is_not_good_and_one_that_its_client_left_counts_on_neither_side(answer: Answer) -> None:
    answer("failing", 1, 1, "failed")
    assert counted("failing", "default") == (0, 1)
    answer("left", 1, 1, "cancelled")
    assert not [name for name in SHOWN if name.startswith("labs_slo") and name.split()[1] == "left"]


def test_without_limits_nothing_is_counted(answer: Answer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LABS_SLO")
    answer("boundless", 1, 1)
    assert not [name for name in SHOWN if name.startswith("labs_slo") and name.split()[1] == "boundless"]


def test_clients_cannot_make_more_classes_than_32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABS_SLO", "ttft<500ms")
    shown = Gauges("crowded")

    def kind(tenant: str) -> str:
        return shown.life(Request({}, json.dumps({"tenant": tenant})), 0.0).kind

    kinds = [kind(f"t{number}") for number in range(40)]
    assert kinds[31:34] == ["t31", "others", "others"] and kind("t3") == "t3"


# -- what is read of it ------------------------------------------------------------------------------------------------


def snapshot(**counts: tuple[float, float]) -> metrics.Snapshot:
    """Of one model: good requests and all, by class."""
    lines = ['nv_inference_exec_count{model="m",version="1"} 1']
    for kind, (good, every) in counts.items():
        lines += [f'labs_slo_good_total{{model="m",class="{kind}"}} {good}']
        lines += [f'labs_slo_requests_total{{model="m",class="{kind}"}} {every}']
    return metrics.parse_metrics("\n".join(["# TYPE labs_slo_good_total counter", *lines, ""]))


def at_each_look(monkeypatch: pytest.MonkeyPatch, *seconds: float) -> None:
    now = iter(seconds)
    monkeypatch.setattr(kit, "time", SimpleNamespace(monotonic=lambda: next(now)))


def test_rates_are_of_the_last_ten_seconds_by_class() -> None:
    seen = GoodputMeter()
    for at, good in ((0, 0), (10, 90), (20, 100)):
        seen.take(snapshot(ann=(good, good + at), bob=(at, at)), at)
    assert seen.rates("m") == {"ann": Rate(1.0, 2.0), "bob": Rate(1.0, 1.0)}
    assert seen.rates("another") == {} and seen.share() == pytest.approx(2 / 3)


def test_a_server_that_counts_from_nothing_begins_anew() -> None:
    seen = GoodputMeter()
    for at, good in ((0, 50), (1, 60), (2, 0), (3, 4)):
        seen.take(snapshot(default=(good, good)), at)
    assert seen.rates() == {"default": Rate(4.0, 4.0)}


def test_the_live_page_has_a_row_for_each_class(monkeypatch: pytest.MonkeyPatch) -> None:
    at_each_look(monkeypatch, 0.0, 4.0)
    page = LiveCounters()
    page.snapshot(snapshot(ann=(0, 0), default=(0, 0)))
    page.count([{"model": "m", "ids": ["a"]}])
    page.snapshot(snapshot(ann=(2, 8), default=(4, 4)))
    (row,) = page.rows()
    assert row["facts"][-2:] == [("goodput/s, ann", "–", "0.5 of 2.0"), ("goodput/s", "–", "1.0 of 1.0")]


# -- the autoscaler's signal -------------------------------------------------------------------------------------------


def record(slo: str = "ttft<500ms") -> Record:
    here = Endpoints("h:1", "h:2", "h:3")
    servers = [Replica(1, here), Replica(2, here)]
    return Record("s", "05", "local", "cpu", {"slo": slo}, ["m"], here, balance="l7", servers=servers)


def looks(
    signal: signals.WithinLimits, monkeypatch: pytest.MonkeyPatch, waiting: float, *counts: tuple[float, float]
) -> list[float]:
    """What the signal says at each second, given the good requests and all until then, while so many wait."""
    now = iter(counts)
    at_each_look(monkeypatch, *map(float, range(2 * len(counts))))
    monkeypatch.setattr(signals.Waiting, "look", lambda self, record: waiting)
    monkeypatch.setattr(metrics, "scrape", lambda endpoint: snapshot(default=next(now)))
    return [signal.look(record()) for _ in counts]


def test_too_small_a_share_within_the_limits_asks_for_another_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = (0, 0), (10, 10), (18, 20), (18, 21)
    assert looks(signals.WithinLimits(0.9), monkeypatch, 0.0, *counts) == [0.0, 0.0, 0.0, math.inf]
    scaler = Scaler(1, 3, patience=3)
    assert [scaler.decide(math.inf, 1) for _ in range(3)] == [1, 1, 2]


def test_a_stack_whose_requests_wait_and_are_never_answered_asks_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    signal = signals.WithinLimits(0.9)
    seen = looks(signal, monkeypatch, 7.0, *[(0.0, 0.0)] * 12)
    assert seen[:10] == [1.0] * 10 and seen[-1] == math.inf, "one that waits is no reason to have fewer"
    assert signal.why(math.inf, 2) == "0% within the limits by 2"


def test_a_stack_without_limits_is_refused_with_the_way_to_have_them() -> None:
    with lab_error("slo-none"):
        signals.WithinLimits(0.9).look(record(slo=""))


@pytest.mark.parametrize("target", ["", "%", "-1", "101%", "4%%", "1e3", "four"])
def test_a_target_that_is_neither_a_number_nor_a_share_is_refused(target: str) -> None:
    with lab_error("scale-target-invalid"):
        signals.parse_scale_target(target)


def test_a_number_is_waiting_requests_and_a_share_is_goodput() -> None:
    assert signals.parse_scale_target("2.5") == {"target": 2.5}
    assert isinstance(signals.parse_scale_target("95%")["signal"], signals.WithinLimits)


# -- where the limits come from ----------------------------------------------------------------------------------------


def test_the_limits_of_any_stack_reach_its_servers_in_one_form() -> None:
    workspace = Workspace.find(ROOT)
    lab, name = load_catalog(workspace).stack("scaled")
    plan = make_plan(workspace, lab, name, Options(set={"slo": "tpot<60, ttft<500ms"}))
    assert plan.server_env["LABS_SLO"] == "ttft<500ms,tpot<60ms"


def test_limits_that_cannot_be_read_are_refused_before_anything_starts() -> None:
    done = CliRunner().invoke(cli, ["render", "iterative", "--set", "slo=fast"])
    is_lab_error(done.exception, "slo-invalid", "'fast'")
