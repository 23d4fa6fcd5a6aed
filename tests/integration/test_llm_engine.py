"""The four models of labs 03 and 05 on a real Triton: exact lengths, a hundred at once, refusals, cancellation."""

from __future__ import annotations

import queue
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import psutil
import pytest
import tritonclient.grpc as grpcclient
from pacing import await_arrived, slowed, standing
from tritonclient.utils import InferenceServerException
from waiting import DEADLINE_S, eventually

from labkit.client import identity, metrics
from labkit.client.ask import TextStream, tensor, text_tensor
from labkit.evidence import steplog

pytestmark = pytest.mark.xdist_group("llm")
MODEL, TINY = "tensorrt_llm", {"model": "random:tiny-llama"}
KINDS: dict[str, Any] = {
    "beam_width": np.uint32,
    "end_id": np.uint32,
    "runtime_top_k": np.uint32,
    "random_seed": np.uint64,
    "temperature": np.float32,
    "stop": np.bool_,
    "streaming": np.bool_,
}


def ask(ids: list[int], tokens: int, length: int | None = None, **more: Any) -> list[Any]:
    return [
        tensor("input_ids", ids, np.int32),
        tensor("input_lengths", len(ids) if length is None else length, np.int32),
        tensor("request_output_len", tokens, np.uint32),
        *(tensor(name, value, KINDS[name]) for name, value in more.items()),
    ]


def text(prompt: str, tokens: int, bad: str = "", stop: str = "") -> list[Any]:
    return [
        text_tensor("text_input", prompt),
        tensor("max_tokens", tokens, np.uint32),
        text_tensor("bad_words", bad),
        text_tensor("stop_words", stop),
    ]


@pytest.fixture(params=["inflight-batching", "static-batching"])
def server(request: pytest.FixtureRequest, lab_server: Any) -> Any:
    return lab_server(request.param, **TINY)


@pytest.fixture
def client(server: Any) -> Any:
    client = grpcclient.InferenceServerClient(server.grpc)
    yield client
    client.close()


def output(result: Any) -> list[int]:
    return list(result.as_numpy("output_ids")[0, 0])


def test_the_output_holds_prompt_and_exactly_the_tokens_asked_for(client: Any) -> None:
    result = client.infer("tensorrt_llm", ask([5, 6, 7], 9))
    assert result.get_response().outputs[0].name == "output_ids"
    assert result.as_numpy("output_ids").shape == (1, 1, 12)
    assert output(result)[:3] == [5, 6, 7]


@pytest.mark.parametrize(("length", "used"), [(2, 2), (40, 3)])
def test_a_length_that_disagrees_uses_the_shorter_and_is_no_error(client: Any, length: int, used: int) -> None:
    assert client.infer("tensorrt_llm", ask([5, 6, 7], 4, length)).as_numpy("output_ids").shape == (1, 1, used + 4)


def settle(server: Any, client: Any) -> None:
    """Wait until all that was asked so far is on /metrics: an answer comes before its account."""
    client.infer("tensorrt_llm", ask([5, 6, 7], 2), request_id="last")

    def there() -> bool:
        steps = steplog.read_step_log(server.run_dir, "tensorrt_llm")
        made = sum(sum(step.made) for step in steps)
        ended = any("last" in step.ended for step in steps)
        return ended and metrics.scrape(server.metrics).own["tensorrt_llm", "labs_tokens_total"] == made

    eventually(there)


def test_the_metrics_hold_what_the_model_did_and_triton_cannot_know(server: Any, client: Any) -> None:
    settle(server, client)
    before = metrics.scrape(server.metrics)
    for _ in range(3):
        client.infer("tensorrt_llm", ask([5, 6, 7], 5))

    def there() -> metrics.Snapshot | None:
        """The page that has all of it: it is handed on four times a second, the time between two tokens last."""
        seen = metrics.scrape(server.metrics).since(before)
        between = seen.histograms.get(("tensorrt_llm", "labs_inter_token_latency_seconds"))
        return seen if between and between.count == 12 else None

    seen = eventually(there)
    assert seen.own["tensorrt_llm", "labs_tokens_total"] == 15
    counts = {
        name.removeprefix("labs_"): (each.count, each.sum)
        for (_, name), each in seen.histograms.items()
        if not name.endswith("_seconds")
    }
    assert counts["batch_size"] == (seen.own["tensorrt_llm", "labs_steps_total"],) * 2, "one request at a time"
    assert (counts["step_tokens prefill"], counts["step_tokens decode"]) == ((3, 9), (12, 12))
    times = {name: each for (_, name), each in seen.histograms.items() if name.endswith("_seconds")}
    assert times["labs_time_to_first_token_seconds"].count == 3
    assert times["labs_inter_token_latency_seconds"].count == 12
    assert seen.own["tensorrt_llm", "labs_waiting"] == 0


@pytest.mark.parametrize(
    ("inputs", "name"),
    [
        (ask([5], 0), "request_output_len"),
        (ask([5], 4_000_000_000), "request_output_len"),
        (ask([5], 3, beam_width=2), "beam_width"),
        (ask([5], 3, temperature=-1.0), "temperature"),
        (ask([999_999], 3), "input_ids"),
        (ask([5] * 2100, 3), "input_ids"),
        (ask([5], 3, 0), "input_lengths"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name_and_the_server_lives(client: Any, inputs: Any, name: str) -> None:
    with pytest.raises(InferenceServerException, match=name):
        client.infer("tensorrt_llm", inputs)
    assert len(output(client.infer("tensorrt_llm", ask([5], 2)))) == 3


@pytest.mark.parametrize(
    ("prompt", "bad", "name"), [("", "", "QUERY"), ("x" * 1_000_000, "", "QUERY"), ("Hello", "the", "bad_words")]
)
def test_the_ensemble_names_what_it_refuses(client: Any, prompt: str, bad: str, name: str) -> None:
    with pytest.raises(InferenceServerException, match=name):
        client.infer("ensemble", text(prompt, 3, bad))


def test_the_ensemble_answers_with_a_one_dimensional_text_that_begins_with_the_prompt(client: Any) -> None:
    answer = client.infer("ensemble", text("Hello there", 5)).as_numpy("text_output")
    assert answer.shape == (1,)
    assert answer[0].decode().startswith("Hello there")


def test_a_hundred_requests_at_once_are_answered_each_with_its_own_length(server: Any) -> None:
    requests = [identity.Ids(str(n), [3 + n] * (1 + n % 37), 20 + n % 23) for n in range(100)]
    with standing(server.run_dir, MODEL) as clock, ThreadPoolExecutor(1) as pool:
        answered = pool.submit(identity.run_identity_test, server.grpc, requests, warmup=0)  # refuses wrong lengths
        await_arrived(server.metrics, clock, MODEL, len(requests))
        clock.run()
        records = answered.result()
    steps = steplog.read_step_log(server.run_dir, MODEL, since=records[0].start)
    assert max(step.batch for step in steps) == 16


def test_a_stopped_request_leaves_the_batch_and_both_get_a_final_response(server: Any, client: Any) -> None:
    answers: queue.Queue[Any] = queue.Queue()

    def stopped() -> bool:
        client.infer("tensorrt_llm", ask([0], 0, 0, stop=True), request_id="a")
        return not answers.empty()

    with slowed(server.run_dir, MODEL):  # it has not ended before it is stopped
        client.async_infer(
            "tensorrt_llm", ask([5], 1900), lambda result, error: answers.put((result, error)), request_id="a"
        )
        eventually(stopped)
    result, error = answers.get()
    assert error is None
    assert result.as_numpy("output_ids").shape[2] < 1901


def test_a_cancelled_request_frees_its_place_and_the_next_answer_is_right(server: Any, client: Any) -> None:
    right = output(client.infer("tensorrt_llm", ask([5, 6], 5)))
    answers: queue.Queue[Any] = queue.Queue()
    with slowed(server.run_dir, MODEL):  # none has ended before it is cancelled
        calls = [
            client.async_infer("tensorrt_llm", ask([5], 1900), lambda result, error: answers.put(error))
            for _ in range(20)
        ]
        for call in calls:
            call.cancel()
        for _ in calls:
            assert answers.get(timeout=DEADLINE_S) is not None
    assert output(client.infer("tensorrt_llm", ask([5, 6], 5))) == right
    eventually(lambda: metrics.scrape(server.metrics).models["tensorrt_llm"].pending == 0)


def test_who_is_cancelled_while_waiting_leaves_the_queue_of_a_batch_that_stays_full(lab_server: Any) -> None:
    server = lab_server("inflight-batching", **TINY)
    client = grpcclient.InferenceServerClient(server.grpc)
    full = 16
    with slowed(server.run_dir, MODEL):  # so that the batch stays full
        calls = [client.async_infer("tensorrt_llm", ask([5], 1900), lambda result, error: None) for _ in range(full)]
        eventually(lambda: gauges(server, "labs_running") == [full])
        waits = client.async_infer("tensorrt_llm", ask([5], 1900), lambda result, error: None)
        eventually(lambda: gauges(server, "labs_waiting") == [1])
        waits.cancel()
        # With a free place it would have left the queue in any case.
        eventually(lambda: gauges(server, "labs_waiting", "labs_running") == [0, full])
        for call in calls:
            call.cancel()
    eventually(lambda: metrics.scrape(server.metrics).models["tensorrt_llm"].pending == 0)
    client.close()


def gauges(server: Any, *names: str) -> list[float]:
    lines = metrics.metrics_page(server.metrics, DEADLINE_S).splitlines()
    return [float(next(line for line in lines if line.startswith(f"{name}{{")).rpartition(" ")[2]) for name in names]


def test_rounds_of_a_hundred_leave_the_engines_memory_where_it_was(lab_server: Any) -> None:
    # Memory grows with every block of the cache and every shape of a batch that is met for the first time: a small
    # cache and static batches have soon met all of theirs. A leak would go on.
    server = lab_server("static-batching", **TINY, max_tokens_in_paged_kv_cache=2048)
    requests = [identity.Ids(str(n), [3 + n] * 20, 10) for n in range(100)]
    model = str(server.run_dir.parent / "repository" / "tensorrt_llm")
    (stub,) = [p for p in psutil.process_iter(["cmdline"]) if model in " ".join(p.info["cmdline"] or ())]
    used: list[int] = []
    while len(used) < 60 and not (len(used) > 12 and used[-1] - used[-9] < 2 * 2**20):
        identity.run_identity_test(server.grpc, requests, warmup=0)
        used.append(stub.memory_info().rss)
    assert len(used) < 60, f"after 60 rounds it still grows, MiB: {[round(value / 2**20) for value in used]}"


def test_streaming_gives_each_token_once_and_the_last_carries_the_final_flag(lab_server: Any) -> None:
    server = lab_server("inflight-batching", **TINY, decoupled_mode=True)
    inputs = [*text("Hello there", 7), tensor("stream", True, np.bool_)]
    with TextStream(server.grpc) as stream:
        one = stream.send_inputs("ensemble", "Hello there", inputs)
        stream.wait(one, timeout=DEADLINE_S)
    assert len(one.responses) == 7
    with TextStream(server.grpc) as stream:
        whole = stream.send_inputs("ensemble", "Hello there", text("Hello there", 7))
        stream.wait(whole, timeout=DEADLINE_S)
    assert whole.text == "Hello there" + one.text
    client = grpcclient.InferenceServerClient(server.grpc)
    with pytest.raises(InferenceServerException, match="decoupled"):
        client.infer("tensorrt_llm", ask([5], 2))
    client.close()
