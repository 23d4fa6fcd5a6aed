"""What `explain` says of a vLLM by its `/metrics` alone, and what it refuses of pages that are something else."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from click.testing import CliRunner
from lab_errors import lab_error

from labctl.cli.explain import explain_command
from labsched.__main__ import main as module
from labsched.vllm import metrics
from labsched.vllm.metrics import explain_metrics

BEFORE = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a \\"b\\", {c}"} 7.0
vllm:num_requests_waiting{engine="0",model_name="m"} 3.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 3.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.5
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.25
vllm:num_preemptions_total{engine="0",model_name="m"} 10.0
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 1000.0
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 900.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.5",model_name="m"} 50.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="2.5",model_name="m"} 60.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf",model_name="m"} 60.0
vllm:time_to_first_token_seconds_count{engine="0",model_name="m"} 60.0
vllm:time_to_first_token_seconds_sum{engine="0",model_name="m"} 12.0
vllm:e2e_request_latency_seconds_count{engine="0",model_name="m"} 40.0
vllm:e2e_request_latency_seconds_sum{engine="0",model_name="m"} 80.0
vllm:e2e_request_latency_seconds_count{engine="1",model_name="m"} 2.0
vllm:e2e_request_latency_seconds_sum{engine="1",model_name="m"} 4.0
vllm:request_queue_time_seconds_count{engine="0",model_name="m"} 40.0
vllm:request_queue_time_seconds_sum{engine="0",model_name="m"} 4.0
vllm:request_prefill_time_seconds_count{engine="0",model_name="m"} 40.0
vllm:request_prefill_time_seconds_sum{engine="0",model_name="m"} 8.0
vllm:request_decode_time_seconds_count{engine="0",model_name="m"} 40.0
vllm:request_decode_time_seconds_sum{engine="0",model_name="m"} 60.0
process_start_time_seconds 1.79e+09
python_gc_objects_collected_total{generation="0"} 8713.0
"""
# Ten requests more of engine 0 and ten of engine 1, which took 4 s each: 2.4 of them in the queue.
MORE = {
    "num_preemptions_total": 5,
    "prefix_cache_queries_total": 200,
    "prefix_cache_hits_total": 50,
    'time_to_first_token_seconds_bucket{engine="0",le="2.5"': 8,
    'time_to_first_token_seconds_bucket{engine="0",le="+Inf"': 10,
    "time_to_first_token_seconds_count": 10,
    "time_to_first_token_seconds_sum": 27,
    "e2e_request_latency_seconds_count": 10,
    "e2e_request_latency_seconds_sum": 40,
    "request_queue_time_seconds_count": 20,
    "request_queue_time_seconds_sum": 48,
    "request_prefill_time_seconds_count": 20,
    "request_prefill_time_seconds_sum": 8,
    "request_decode_time_seconds_count": 20,
    "request_decode_time_seconds_sum": 20,
}


def later(page: str = BEFORE, more: Mapping[str, float] = MORE) -> str:
    """The page with counters that are larger by ``more``, by the beginnings of their names."""
    lines = []
    for line in page.splitlines():
        sample, _, value = line.rpartition(" ")
        grown = [by for name, by in more.items() if line.startswith(f"vllm:{name}")]
        lines.append(f"{sample} {float(value) + sum(grown)}" if grown else line)
    return "".join(f"{line}\n" for line in lines)


Answer = Callable[[BaseHTTPRequestHandler], None]


def page(text: str, status: int = 200) -> Answer:
    def answer(to: BaseHTTPRequestHandler) -> None:
        body = text.encode()
        to.send_response(status)
        to.send_header("Content-Length", str(len(body)))
        to.end_headers()
        to.wfile.write(body)

    return answer


Serve = Callable[..., str]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts a server that gives each answer once, and the last one again; returns the URL of its metrics."""
    servers = list[ThreadingHTTPServer]()

    def start(*answers: Answer) -> str:
        left = [*answers]

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                with contextlib.suppress(OSError):  # whoever has read enough leaves
                    (left.pop(0) if len(left) > 1 else left[0])(self)

            def log_message(self, *_: Any) -> None:
                pass

        servers.append(ThreadingHTTPServer(("127.0.0.1", 0), Handler))
        threading.Thread(target=servers[-1].serve_forever, args=(0.01,), daemon=True).start()
        return f"http://127.0.0.1:{servers[-1].server_port}/metrics"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


WINDOW = 0.001


def test_where_the_time_of_the_requests_went_that_ended_between_two_looks(serve: Serve) -> None:
    found = explain_metrics(serve(page(BEFORE), page(later())), WINDOW)
    assert found["requests"] == 20 and found["first_tokens"] == 10
    parts = {"queue": 2400, "prefill": 400, "decode": 1000, "front_end": 200}
    assert found["parts_ms"] == pytest.approx(parts), "of 4,000 ms"
    assert found["ttft_ms"] == pytest.approx(2700) and found["ttft_p99_ms"] == (2500, None)
    assert (found["preemptions"], found["cached_share"], found["kv_cache_used"]) == (5, 0.25, 0.5)
    assert (found["running"], found["waiting"]) == (7, 3)
    first, second, *_ = found["sentences"]
    assert "20 requests" in first and "4,000 ms" in first and "60% waiting in the scheduler's queue" in first
    assert first.index("60%") < first.index("25%") < first.index("10%") < first.index(" 5%")
    assert "above 2,500 ms" in second
    assert found["sentences"][-2:] == [metrics.UNKNOWN, metrics.RECORDER]


def test_both_commands_say_it_for_a_person_and_for_a_program(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    answers = page(BEFORE), page(later())
    assert module(["explain", serve(*answers), "--window", f"{WINDOW}"]) == 0
    alone = capsys.readouterr().out
    assert "60% waiting in the scheduler's queue" in alone and metrics.RECORDER in alone
    done = CliRunner().invoke(explain_command, [serve(*answers), "--window", f"{WINDOW}"])
    assert "60% waiting in the scheduler's queue" in " ".join(done.stdout.split()) and metrics.RECORDER in done.stdout
    assert module(["explain", serve(*answers), "--window", f"{WINDOW}", "--json"]) == 0
    by_module = json.loads(capsys.readouterr().out)
    done = CliRunner().invoke(explain_command, [serve(*answers), "--window", f"{WINDOW}", "--json"])
    assert json.loads(done.stdout)["parts_ms"] == by_module["parts_ms"]


@pytest.mark.parametrize("options", [["--from", "1"], ["--phase", "x"], ["--client", "x"]])
def test_what_is_asked_of_a_recording_cannot_be_asked_of_counters(options: list[str], serve: Serve) -> None:
    url = serve(page(BEFORE))
    assert module(["explain", url, *options]) == 1
    assert module(["explain", "folder", "--window", "1"]) == 1


def test_a_vllm_that_was_restarted_in_the_window_has_no_answer(serve: Serve) -> None:
    smaller = later(more={"request_queue_time_seconds_sum": -1.0})
    without = "".join(line for line in later().splitlines(True) if "preemptions" not in line)
    for after in (smaller, without, later().replace("1.79e+09", "1.80e+09")):
        with lab_error("metrics-restarted"):
            explain_metrics(serve(page(BEFORE), page(after)), WINDOW)


def test_a_window_in_which_no_request_ended_says_how_many_there_are(serve: Serve) -> None:
    with lab_error("metrics-idle", "7 run", "3 wait"):
        explain_metrics(serve(page(BEFORE)), WINDOW)


@pytest.mark.parametrize("window", [0.0, -1.0, 1e9, float("nan")])
def test_a_window_without_an_end_or_a_beginning_is_refused_before_anything_is_read(window: float) -> None:
    with lab_error("metrics-window"):
        explain_metrics("http://127.0.0.1:9/metrics", window)


@pytest.mark.parametrize(
    "text",
    [
        "<!DOCTYPE html><html><body>vllm:</body></html>",
        "",
        "nv_inference_count 3\n",
        BEFORE.replace("vllm:request_queue_time_seconds_sum", "vllm:other"),
        BEFORE.replace('_sum{engine="0",model_name="m"} 4.0', '_sum{engine="0",model_name="m"} much'),
        BEFORE.replace('_sum{engine="0",model_name="m"} 4.0', '_sum{engine="0",model_name="m"} NaN'),
        BEFORE.replace('le="2.5"', 'le="wide"'),
        BEFORE + "vllm:num_requests_running{\n",
        BEFORE.replace('model_name="m"}', 'model_name="m}', 1),
    ],
)
def test_a_page_that_is_not_vllms_metrics_is_refused(text: str, serve: Serve) -> None:
    with lab_error("metrics-foreign"):
        explain_metrics(serve(page(text)), WINDOW)


def test_what_is_not_utf_8_is_refused(serve: Serve) -> None:
    def answer(to: BaseHTTPRequestHandler) -> None:
        to.wfile.write(b"HTTP/1.0 200 OK\r\n\r\nvllm:\xff 1\n")

    with lab_error("metrics-foreign"):
        explain_metrics(serve(answer), WINDOW)


def endless(to: BaseHTTPRequestHandler) -> None:
    to.wfile.write(b"HTTP/1.0 200 OK\r\n\r\n")
    while True:
        to.wfile.write(b"# a comment\n" * 10_000)


def trickling(to: BaseHTTPRequestHandler) -> None:
    to.wfile.write(b"HTTP/1.0 200 OK\r\nX-More: ")
    while not CLOSING.wait(0.01):
        to.wfile.write(b"x")


def broken_off(to: BaseHTTPRequestHandler) -> None:
    to.wfile.write(b"HTTP/1.0 200 OK\r\nContent-Length: 10000\r\n\r\nvllm:a 1\n")


CLOSING = threading.Event()


@pytest.mark.parametrize("answer", [endless, trickling, broken_off, page("", 404), page("", 503)])
def test_a_page_that_does_not_end_or_does_not_come_is_given_up(
    answer: Answer, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    if answer is trickling:  # each byte comes in time, and the page never does
        monkeypatch.setattr(metrics, "TIMEOUT_S", 0.2)
    CLOSING.clear()
    try:
        with lab_error("metrics-unreadable"):
            explain_metrics(serve(answer), WINDOW)
    finally:
        CLOSING.set()


@pytest.mark.parametrize(
    "url",
    [
        "http://",
        "http://127.0.0.1:x/metrics",
        "http://127.0.0.1:99999/metrics",
        "http://[::1/metrics",
        "http://127.0.0.1:1/a b",
        "https://127.0.0.1:1/metrics",
        "http://ä\x00/metrics",
    ],
)
def test_a_url_behind_which_is_nothing_is_one_error(url: str) -> None:
    with lab_error("metrics-unreadable"):
        explain_metrics(url, WINDOW)


def test_a_port_beyond_the_last_is_not_the_port_65536_below_it(serve: Serve) -> None:
    host, port = serve(page("")).removesuffix("/metrics").rsplit(":", 1)
    with lab_error("metrics-unreadable"):
        explain_metrics(f"{host}:{int(port) + 65536}/metrics", WINDOW)
