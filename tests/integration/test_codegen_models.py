"""The four models of lab 04 on a real Triton: the tensors that clients rely on, in any batch, and every refusal."""

from __future__ import annotations

import http.client
import json
import queue
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from checkout import ROOT
from codegen_requests import USUAL, ensemble, generator, tensor, texts
from pacing import await_arrived, standing
from tritonclient.utils import InferenceServerException
from waiting import DEADLINE_S, eventually

from labkit.client import metrics
from labkit.evidence import steplog

pytestmark = pytest.mark.xdist_group("codegen")
GENERATOR = "codegen-350M-mono-gptj"
PROMPTS = ("def hello_world():", "def add(a, b):", "# return the maximum of a list\ndef", "def is_prime(n):", "def f")
END = "<|endoftext|>"


@pytest.fixture(scope="module")
def server(lab_server: Callable[..., Any]) -> Any:
    return lab_server("codegen")


@pytest.fixture(scope="module")
def client(server: Any) -> Iterator[Any]:
    client = grpcclient.InferenceServerClient(server.grpc)
    yield client
    client.close()


def answers(client: Any, *arguments: Any, **given: Any) -> list[str]:
    found = client.infer("ensemble", ensemble(*arguments, **given)).as_numpy("OUTPUT_0")
    return [text.decode() for text in found]


def at_once(client: Any, requests: list[list[Any]], sent: Callable[[], None] = lambda: None) -> list[Any]:
    """All answers (or errors), in the order of the requests; ``sent`` is called when all are on their way."""
    done: queue.Queue[tuple[int, Any]] = queue.Queue()
    for place, inputs in enumerate(requests):
        client.async_infer("ensemble", inputs, lambda result, error, at=place: done.put((at, error or result)))
    sent()
    return [answer for _, answer in sorted((done.get(timeout=DEADLINE_S) for _ in requests), key=lambda item: item[0])]


@pytest.mark.parametrize("rows", [1, 5])
def test_all_four_outputs_come_with_the_shapes_that_clients_read(client: Any, rows: int) -> None:
    result = client.infer("ensemble", ensemble(PROMPTS[:rows], 12, **USUAL))
    shapes = {
        name: result.as_numpy(name).shape
        for name in ("OUTPUT_0", "sequence_length", "cum_log_probs", "output_log_probs")
    }
    assert shapes == {
        "OUTPUT_0": (rows,),
        "sequence_length": (rows, 1),
        "cum_log_probs": (rows, 1),
        "output_log_probs": (rows, 1, 12),
    }
    for prompt, raw in zip(PROMPTS, result.as_numpy("OUTPUT_0"), strict=False):
        text = raw.decode()
        assert text.startswith(prompt)
        assert text.endswith(END)
        assert text.count(END) == 1


def test_the_answer_over_http_is_that_over_grpc(server: Any, client: Any) -> None:
    other = httpclient.InferenceServerClient(server.http)
    inputs = ensemble(PROMPTS, 9, kind=httpclient.InferInput, **USUAL)
    assert other.infer("ensemble", inputs).as_numpy("OUTPUT_0").tolist() == [
        text.encode() for text in answers(client, PROMPTS, 9, **USUAL)
    ]
    other.close()


def test_a_greedy_answer_is_that_of_hugging_face_and_so_are_its_log_probabilities(client: Any) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = ROOT / "labs" / "shared" / "models" / "tiny-codegen"
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    ids = tokenizer.encode(PROMPTS[2])
    result = client.infer(GENERATOR, generator([ids], 24, **USUAL))
    found = result.as_numpy("output_ids")[0, 0].tolist()
    with torch.inference_mode():
        scores = torch.log_softmax(model(torch.tensor([found])).logits[0].float(), dim=-1)
    assert found == [*ids, *scores.argmax(-1)[len(ids) - 1 : -1].tolist()]
    expected = [float(scores[at - 1, found[at]]) for at in range(len(ids), len(found))]
    assert result.as_numpy("output_log_probs")[0, 0].tolist() == pytest.approx(expected, abs=1e-3)
    assert result.as_numpy("cum_log_probs")[0, 0] == pytest.approx(sum(expected), abs=1e-2)


def test_each_model_answers_alone_and_one_feeds_the_next(client: Any) -> None:
    inputs = [
        texts(grpcclient.InferInput, "QUERY", PROMPTS[:2]),
        texts(grpcclient.InferInput, "BAD_WORDS_DICT", ["", "print,return"]),
        texts(grpcclient.InferInput, "STOP_WORDS_DICT", ["", ""]),
        tensor(grpcclient.InferInput, "REQUEST_OUTPUT_LEN", "UINT32", np.array([[6], [6]], dtype=np.uint32)),
    ]
    first = client.infer("preprocessing", inputs)
    assert first.as_numpy("BAD_WORDS_IDS").shape[:2] == first.as_numpy("STOP_WORDS_IDS").shape[:2] == (2, 2)

    def on(name: str, datatype: str, array: Any) -> Any:
        return tensor(grpcclient.InferInput, name, datatype, array)

    second = client.infer(
        GENERATOR,
        [
            on("input_ids", "UINT32", first.as_numpy("INPUT_ID")),
            on("input_lengths", "UINT32", first.as_numpy("REQUEST_INPUT_LEN")),
            on("request_output_len", "UINT32", first.as_numpy("REQUEST_OUTPUT_LEN")),
            on("bad_words_list", "INT32", first.as_numpy("BAD_WORDS_IDS")),
            on("stop_words_list", "INT32", first.as_numpy("STOP_WORDS_IDS")),
        ],
    )
    third = client.infer("postprocessing", [on("TOKENS_BATCH", "UINT32", second.as_numpy("output_ids"))])
    whole = [*answers(client, PROMPTS[:1], 6), *answers(client, PROMPTS[1:2], 6, bad="print,return")]
    assert [text.decode() for text in third.as_numpy("OUTPUT")] == whole


def test_rows_are_contiguous_and_filled_up_with_the_end_id(client: Any) -> None:
    result = client.infer(GENERATOR, generator([[5, 6, 7, 8], [9]], 3, **USUAL | {"end_id": 77}))
    ids, lengths = result.as_numpy("output_ids"), result.as_numpy("sequence_length")
    assert ids.shape == (2, 1, 7)
    assert lengths.tolist() == [[7], [4]]
    assert ids[1, 0, 0] == 9
    assert ids[1, 0, 4:].tolist() == [77] * 3


def test_postprocessing_drops_fill_and_ids_outside_the_vocabulary(client: Any) -> None:
    def text(row: list[int]) -> str:
        tokens = tensor(grpcclient.InferInput, "TOKENS_BATCH", "UINT32", np.array([[row]], dtype=np.uint32))
        return str(client.infer("postprocessing", [tokens]).as_numpy("OUTPUT")[0].decode())

    plain = text([300, 301])
    assert plain.endswith(END)
    assert text([300, 301, 50256, 50256]) == text([300, 51000, 301, 50256]) == text([300, 301, 0, 0]) == plain


@pytest.mark.parametrize("word", ["print", "return", "for"])
def test_a_bad_word_is_not_said_and_a_stop_word_is_the_last(client: Any, word: str) -> None:
    prompt = {"print": PROMPTS[0], "return": PROMPTS[1], "for": "def sum_list(numbers):"}[word]
    assert word in answers(client, [prompt], 24)[0]
    assert word not in answers(client, [prompt], 24, bad=word)[0]
    assert answers(client, [prompt], 24, stop=f"nothing,{word}")[0].endswith(f"{word}{END}")


def test_a_repetition_penalty_changes_the_answer_and_neutral_values_do_not(client: Any) -> None:
    plain = answers(client, PROMPTS, 32)
    assert answers(client, PROMPTS, 32, **USUAL) == plain
    assert answers(client, PROMPTS, 32, runtime_top_k=0, temperature=0.0, random_seed=9) == plain
    assert answers(client, PROMPTS, 32, repetition_penalty=2.0) != plain


def test_requests_in_flight_together_share_batches_and_each_gets_its_own_length(server: Any, client: Any) -> None:
    count = 7 * 5

    def counted(inferences: int, before: metrics.Snapshot) -> metrics.ModelCounters | None:
        """Triton's counters, once all are in them: it counts a request when it has sent the answer."""
        found = metrics.scrape(server.metrics).since(before).models[GENERATOR]
        return found if found.inferences == inferences else None

    before = metrics.scrape(server.metrics)
    expected = [answers(client, [PROMPTS[n % 5]], 1 + n % 7)[0] for n in range(count)]
    assert eventually(lambda: counted(count, before)).exec_count == count
    before = metrics.scrape(server.metrics)
    with standing(server.run_dir, GENERATOR) as clock:

        def go_on() -> None:
            await_arrived(server.metrics, clock, GENERATOR, count)
            clock.run()

        found = at_once(client, [ensemble([PROMPTS[n % 5]], 1 + n % 7) for n in range(count)], go_on)
    assert [result.as_numpy("OUTPUT_0")[0].decode() for result in found] == expected
    # Those that came first are held, however few; the others wait for them, and are one batch.
    assert eventually(lambda: counted(count, before)).exec_count == 2
    eventually(lambda: max(step.batch for step in steplog.read_step_log(server.run_dir, GENERATOR)) >= count / 2)


def wrong(name: str, datatype: str, array: Any) -> list[Any]:
    inputs = [made for made in ensemble(PROMPTS[:1], 4) if made.name() != name]
    return [*inputs, tensor(grpcclient.InferInput, name, datatype, array)]


@pytest.mark.parametrize(
    ("inputs", "name"),
    [
        (ensemble([""], 4), "QUERY"),
        (ensemble(["x" * 1_000_000], 4), "QUERY"),
        (ensemble(["x y " * 3000], 4), "input_ids"),
        (ensemble([b"\xff\xfe"], 4), "QUERY"),
        (ensemble(PROMPTS[:1], 0), "request_output_len"),
        (ensemble(PROMPTS[:1], 4_000_000_000), "request_output_len"),
        (ensemble(PROMPTS, [4, 4, 4, 4, 0]), "request_output_len"),
        (ensemble(PROMPTS[:1], 4, beam_width=2), "beam_width"),
        (ensemble(PROMPTS[:1], 4, temperature=-1.0), "temperature"),
        (ensemble(PROMPTS[:1], 4, runtime_top_p=float("nan")), "runtime_top_p"),
        (wrong("INPUT_1", "INT32", np.array([[-5]], dtype=np.int32)), "INPUT_1"),
        (wrong("INPUT_1", "UINT32", np.array([[5], [5]], dtype=np.uint32)), "batch size"),
        (wrong("INPUT_0", "UINT32", np.array([[5]], dtype=np.uint32)), "INPUT_0"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name_and_the_server_goes_on(client: Any, inputs: Any, name: str) -> None:
    with pytest.raises(InferenceServerException, match=name):
        client.infer("ensemble", inputs)
    assert answers(client, PROMPTS[:1], 2)


def test_a_negative_length_as_json_is_refused(server: Any) -> None:
    connection = http.client.HTTPConnection(server.http, timeout=DEADLINE_S)
    rows = {"INPUT_0": ("BYTES", "def"), "INPUT_1": ("UINT32", -1), "INPUT_2": ("BYTES", ""), "INPUT_3": ("BYTES", "")}
    body = {
        "inputs": [
            {"name": name, "shape": [1, 1], "datatype": datatype, "data": [value]}
            for name, (datatype, value) in rows.items()
        ]
    }
    connection.request("POST", "/v2/models/ensemble/infer", json.dumps(body))
    response = connection.getresponse()
    assert "unsigned-integer" in json.loads(response.read())["error"]
    connection.close()


def test_a_bad_request_does_not_spoil_the_batch_that_it_is_in(client: Any) -> None:
    good = ensemble(PROMPTS[:1], 8)
    expected = client.infer("ensemble", good).as_numpy("OUTPUT_0")[0]
    found = at_once(client, [good, ensemble(PROMPTS[:1], 0)] * 12)
    assert all(result.as_numpy("OUTPUT_0")[0] == expected for result in found[::2])
    assert all("request_output_len" in str(error) for error in found[1::2])


def test_cancelled_requests_leave_nothing_behind_and_the_next_answer_is_right(server: Any, client: Any) -> None:
    right = answers(client, PROMPTS[:1], 8)
    gone: queue.Queue[Any] = queue.Queue()
    with standing(server.run_dir, GENERATOR):  # none is answered before it is cancelled
        calls = [
            client.async_infer(
                "ensemble", ensemble(PROMPTS[:1], 900, end_id=50256), lambda result, error: gone.put(error)
            )
            for _ in range(10)
        ]
        for call in calls:
            call.cancel()
        assert all(gone.get(timeout=DEADLINE_S) is not None for _ in calls)
    assert answers(client, PROMPTS[:1], 8) == right
