"""Measurements: formulas against numbers computed by hand, and data that is not whole is refused."""

from __future__ import annotations

import json
import math
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lab_errors import lab_error

from labctl.labs import workloads
from labkit.client import load, metrics
from labkit.evidence import stats, steplog, timeline
from labkit.evidence.records import Lane, RequestRecord
from labkit.evidence.report import write_perfetto
from labsched.log.steplog import StepLog
from labsched.replay.slo import Slo
from labsched.step import Step


def record(start: float, *arrivals: float, error: str = "", prompt: str = "p") -> RequestRecord:
    responses = [(at, f"t{i} ") for i, at in enumerate(arrivals)]
    return RequestRecord(
        "r", "m", prompt, start=start, responses=responses, end=arrivals[-1] if arrivals else start, error=error
    )


def test_the_metrics_of_one_request() -> None:
    one = record(10.0, 10.5, 10.7, 10.9, 11.5)
    assert one.ttft_ms == pytest.approx(500)
    assert one.latency_ms == pytest.approx(1500)
    assert one.tpot_ms == pytest.approx((1500 - 500) / 3)
    assert one.itl_ms == pytest.approx([200, 200, 600])
    assert one.text == "t0 t1 t2 t3 "


def test_a_million_tokens_cost_what_the_machine_costs_while_it_makes_them() -> None:
    quick, slow = record(0.0, 0.5, 1.0, 2.0), record(0.0, 9.0, 10.0)  # 5 tokens in 10 s
    whole = stats.metrics([quick, slow], price=1.8)
    assert whole["cost_per_million_tokens"] == pytest.approx(1.8 * 2_000_000 / 3600)
    within = stats.metrics([quick, slow], Slo.parse("ttft<600ms"), 1.8)  # 3 of the tokens
    assert within["cost_per_million_tokens"] == pytest.approx(1.8 * 10 / 3 * 1_000_000 / 3600)
    assert "cost_per_million_tokens" not in stats.metrics([slow], Slo.parse("ttft<600ms"), 1.8)


def test_a_run_is_summed_up_by_the_fields_formulas() -> None:
    found = stats.metrics([record(0.0, 1.0, 2.0), record(1.0, 1.5, 2.5, 3.5, 4.0)])
    assert found["benchmark_duration"] == pytest.approx(4.0)
    assert found["output_token_throughput"] == pytest.approx(6 / 4)
    assert found["request_throughput"] == pytest.approx(2 / 4)
    assert found["time_to_first_token"]["avg"] == pytest.approx(750)
    assert found["time_per_output_token"]["max"] == pytest.approx(1000)
    assert found["time_per_output_token"]["avg"] == pytest.approx((1000 + 2500 / 3) / 2)
    gaps = found["inter_token_latency"]  # 1000; 1000, 1000, 500
    assert (gaps["avg"], gaps["min"], gaps["p50"]) == pytest.approx((875, 500, 1000))
    assert found["request_count"] == 2


def test_percentiles_say_and_keep_their_method() -> None:
    assert stats.summarize([1, 2, 3, 4])["p50"] == pytest.approx(2.5)
    assert stats.summarize([1, 2, 3, 4])["p90"] == pytest.approx(3.7)


@pytest.mark.parametrize(
    ("limits", "good"),
    [
        ("ttft<500ms", 3),
        ("tpot<70ms", 3),
        ("ttft<500ms,tpot<70ms", 2),
        ("ttft<125ms,tpot<62.5ms", 2),  # limits that are just met
        ("ttft<124.9ms", 0),
    ],
)
def test_goodput_counts_the_requests_that_meet_every_limit(limits: str, good: int) -> None:
    records = [
        record(0.0, 0.125, 0.1875, 0.25),  # TTFT 125 ms, TPOT 62.5 ms
        record(0.0, 0.125, 0.25),  # 125, 125
        record(0.0, 1.0, 1.03125),  # 1000, 31.25
        record(3.875, 4.0),  # 125, and one token
    ]
    found = stats.metrics(records, Slo.parse(limits))
    assert found["goodput"] == pytest.approx(good / 4)


def test_limits_are_written_as_they_are_read() -> None:
    assert Slo.parse(" tpot<60, ttft<500.5ms ") == Slo(ttft=500.5, tpot=60)
    assert str(Slo(ttft=500.5, tpot=60)) == "ttft<500.5ms,tpot<60ms"


@pytest.mark.parametrize("text", ["", "ttft", "ttft=500", "ttft<0", "ttft<²", "ttft<-1ms", "e2e<5", "ttft<1,ttft<2"])
def test_other_limits_are_refused_with_the_spelling(text: str) -> None:
    with lab_error("slo-invalid"):
        Slo.parse(text)


@pytest.mark.parametrize("broken", [record(0.0, 1.0, error="boom"), record(0.0)])
def test_a_run_with_a_failed_request_is_never_averaged(broken: RequestRecord) -> None:
    with lab_error("requests-failed", "1 of 2"):
        stats.metrics([record(0.0, 1.0), broken])


PROMETHEUS = """\
# HELP nv_inference_count Number of inferences performed
# TYPE nv_inference_count counter
nv_inference_count{model="m",version="1"} 40
# TYPE nv_inference_exec_count counter
nv_inference_exec_count{model="m",version="1"} 8
# TYPE nv_inference_request_success counter
nv_inference_request_success{model="m",version="1"} 40
# TYPE nv_inference_request_failure counter
nv_inference_request_failure{model="m",reason="OTHER",version="1"} 1
nv_inference_request_failure{model="m",reason="CANCELED",version="1"} 2
nv_inference_request_failure{model="m",reason="REJECTED",version="1"} 4
# TYPE nv_inference_pending_request_count gauge
nv_inference_pending_request_count{model="m",version="1"} 3
# TYPE labs_running gauge
labs_running{model="m"} 5
"""


def test_tritons_counters_are_read_per_model() -> None:
    snapshot = metrics.parse_metrics(PROMETHEUS)
    row = snapshot.models["m"]
    assert (row.inferences, row.exec_count, row.mean_batch, row.pending) == (40, 8, 5, 3)
    assert (row.succeeded, row.failed, row.canceled, row.rejected) == (40, 5, 2, 4)
    assert snapshot.own["m", "labs_running"] == 5


def test_counters_are_subtracted_and_gauges_are_not() -> None:
    earlier = metrics.parse_metrics(PROMETHEUS.replace("} 40", "} 10").replace("} 8", "} 2"))
    delta = metrics.parse_metrics(PROMETHEUS).since(earlier).models["m"]
    assert (delta.inferences, delta.exec_count, delta.pending) == (30, 6, 3)


STEP = {"dur": 0.5, "model": "m", "instance": "0_0", "kind": "step"}


def test_the_step_log_is_read_in_order_and_a_cut_line_is_left_out(tmp_path: Path) -> None:
    line = {**STEP, "t": 2.0, "batch": 2, "ids": ["1", "2"], "prefill": 1}
    first = {**line, "t": 1.0}
    (tmp_path / "steps-m-0_0.jsonl").write_text(f'{json.dumps(line)}\n{json.dumps(first)}\n{{"t": 3.0, "du')
    steps = steplog.read_step_log(tmp_path)
    assert [step.over for step in steps] == [1.0, 2.0]
    assert steps[1].began == 1.5
    assert (steps[1].batch, steps[1].prefill) == (2, 1)


def test_what_was_in_a_step_log_before_is_not_read_again_unless_it_was_begun_anew(tmp_path: Path) -> None:
    def line(n: int) -> str:
        return json.dumps({**STEP, "t": n, "ids": ["1"]}) + "\n"

    path = tmp_path / "steps-m-0_0.jsonl"
    path.write_text(line(1) + line(2)[:9])
    behind = steplog.log_sizes(tmp_path)
    path.write_text(line(1) + line(2) + line(3))
    assert [step.over for step in steplog.read_step_log(tmp_path, behind=behind)] == [3]
    path.write_text(line(4))
    behind = {path.stat().st_ino: 10_000}
    assert [step.over for step in steplog.read_step_log(tmp_path, behind=behind)] == [4]


@given(before=st.integers(1, 60))
def test_what_is_new_in_a_step_log_is_found_when_it_was_rotated_meanwhile(before: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        log = StepLog(folder, "m", "0_0", most_bytes=1000)  # ten steps
        for number in range(before):
            log.write(float(number), [number], over=number + 0.5)
        behind = steplog.log_sizes(Path(folder))
        for number in range(before, before + 9):
            log.write(float(number), [number], over=number + 0.5)
        log.close()
        found = [step.ids for step in steplog.read_step_log(Path(folder), behind=behind)]
    assert found == [[str(number)] for number in range(before, before + 9)]


def test_random_arrivals_are_repeatable_and_have_the_asked_rate() -> None:
    times = load.poisson(2000, rate=10.0, seed=3)
    assert times == load.poisson(2000, rate=10.0, seed=3)
    assert times[0] == 0
    assert times == sorted(times)
    assert 2000 / times[-1] == pytest.approx(10, rel=0.1)


def test_the_picture_and_the_trace_hold_every_request(tmp_path: Path) -> None:
    steps = [Step(["1", "2"], 0.1, 0.2, prefill=1, ended={"1": "length"})]
    lane = Lane("m: $1 and 서울", [record(0.0, 0.2, 0.4, prompt="costs $5"), record(0.1, 0.4)], steps)
    timeline.draw_timeline([lane], tmp_path / "t.png", "title")
    assert (tmp_path / "t.png").read_bytes().startswith(b"\x89PNG")
    write_perfetto([lane], tmp_path / "t.json")
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert sum(e["ph"] == "i" for e in events) == 3
    assert [e["args"]["requests"] for e in events if e["ph"] == "C"] == [2, 0]
    assert not list(tmp_path.glob(".*"))


HISTOGRAM = """\
# TYPE labs_step_tokens histogram
labs_step_tokens_count{model="m",phase="prefill"} 4
labs_step_tokens_sum{model="m",phase="prefill"} 30
labs_step_tokens_bucket{model="m",phase="prefill",le="8"} 2
labs_step_tokens_bucket{model="m",phase="prefill",le="16"} 4
labs_step_tokens_bucket{model="m",phase="prefill",le="+Inf"} 4
labs_step_tokens_count{model="m",phase="decode"} 1
labs_step_tokens_sum{model="m",phase="decode"} 99
labs_step_tokens_bucket{model="m",phase="decode",le="8"} 0
labs_step_tokens_bucket{model="m",phase="decode",le="+Inf"} 1
# TYPE labs_time_to_first_token_seconds histogram
labs_time_to_first_token_seconds_count{model="m"} 0
labs_time_to_first_token_seconds_sum{model="m"} 0
labs_time_to_first_token_seconds_bucket{model="m",le="+Inf"} 0
"""


def test_histograms_are_read_by_model_and_label_and_subtracted() -> None:
    earlier = metrics.parse_metrics(HISTOGRAM)
    later = metrics.parse_metrics(HISTOGRAM.replace('"prefill"} 30', '"prefill"} 50').replace("} 4", "} 8"))
    grown, whole = (one.histograms["m", "labs_step_tokens prefill"] for one in (later.since(earlier), earlier))
    assert (grown.count, grown.mean) == (4, 5)
    assert (whole.quantile(0.5), whole.quantile(0.75)) == (8, 12)
    assert earlier.histograms["m", "labs_step_tokens decode"].quantile(0.5) == 8, "the last bound"
    assert math.isnan(earlier.histograms["m", "labs_time_to_first_token_seconds"].quantile(0.5))


def test_who_waits_is_the_models_own_count_where_it_has_one() -> None:
    snapshot = metrics.parse_metrics(PROMETHEUS)
    assert snapshot.waiting("m") == 3, "Triton's"
    assert metrics.parse_metrics(f'{PROMETHEUS}labs_waiting{{model="m"}} 28\n').waiting("m") == 28
    assert snapshot.waiting("unknown") == 0


def test_nvidias_backend_says_who_waits_while_tritons_queue_is_empty() -> None:
    def waiting(**kinds: int) -> float:
        lines = "".join(
            f'nv_trt_llm_request_metrics{{model="m",version="1",request_type="{kind}"}} {value}\n'
            for kind, value in kinds.items()
        )
        return metrics.parse_metrics(PROMETHEUS + lines).waiting("m")

    assert waiting(active=60, max=64, scheduled=48, context=0) == 12
    # An idle server, as upstream's own README shows it (tensorrtllm_backend v0.17.0, README.md:709-712).
    assert waiting(active=0, max=512, scheduled=1, context=1) == 0


def test_goodput_of_each_tenant_is_told_where_requests_have_one() -> None:
    records = [record(0.0, 0.5, 4.0), record(0.0, 0.5, 4.0), record(0.0, 3.0, 4.0)]
    for one, tenant in zip(records, ("ann", "ann", "bob"), strict=True):
        one.parameters["tenant"] = tenant
    slo = Slo.parse("ttft<600ms")
    found = stats.metrics(records, slo)
    assert found["goodput_by_class"] == {"ann": pytest.approx(2 / 4), "bob": 0.0}
    assert workloads.goodput_words(slo, {"trace": found}) == [
        "Goodput: requests per second within ttft<600ms.",
        "Goodput by tenant, trace: ann 0.50, bob 0.00.",
    ]
    assert "goodput_by_class" not in stats.metrics([record(0.0, 0.5, 4.0)], slo)
