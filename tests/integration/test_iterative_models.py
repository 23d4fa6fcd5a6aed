"""simple-gpt2 and iterative-gpt2 behind a real Triton: right tokens, right ends, and no client that breaks them."""

import functools
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from typing import Any

import pytest
import torch
from gpt2_streams import Stream, ask
from pacing import slowed
from transformers import AutoModelForCausalLM, AutoTokenizer
from tritonclient.utils import InferenceServerException
from waiting import DEADLINE_S

pytestmark = pytest.mark.xdist_group("iterative")
MODELS = ["simple-gpt2", "iterative-gpt2"]
IDLE = 10.0  # seconds until Triton drops a sequence whose step takes longer, and tells its client nothing
PROMPTS = [
    "Programming in C++ is like",
    "I have lived in Seoul",
    "The",
    "The old farmer sees a small house near the river and",
    "She",
    "Every morning the",
    "A teacher and a child",
    "Un café, ein Mädchen, 서울",
    "In the evening",
    "Who",
]
NEAR_TIE = 1e-4


@pytest.fixture(scope="module", params=[True, False], ids=["kv-cache", "recomputing"])
def server(request: Any, lab_server: Any) -> Any:
    return lab_server(
        "iterative", kv_cache=request.param, max_sequence_idle_microseconds=int(IDLE * 1e6), precision="fp32", threads=1
    )


@pytest.fixture(scope="module")
def tokenizer(server: Any) -> Any:
    return AutoTokenizer.from_pretrained(server.settings["tokenizer_dir"])


@pytest.fixture(scope="module")
def reference(server: Any) -> Any:
    return AutoModelForCausalLM.from_pretrained(server.settings["tokenizer_dir"], dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def alone(reference: Any, tokenizer: Any) -> Any:
    """`alone(prompt, tokens)`: the new ids that plain `generate` gives, cut where the best two tokens nearly tie."""
    torch.set_num_threads(1)
    return functools.cache(functools.partial(generate, reference, tokenizer))


def generate(reference: Any, tokenizer: Any, prompt: str, tokens: int) -> list[int]:
    ids = torch.tensor([tokenizer.encode(prompt)])
    reference.generation_config.eos_token_id = None
    out = reference.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=tokens,
        min_new_tokens=tokens,
        do_sample=False,
        pad_token_id=0,
        eos_token_id=None,
        output_logits=True,
        return_dict_in_generate=True,
    )
    new = out.sequences[0, ids.shape[1] :].tolist()
    for place, logits in enumerate(out.logits):
        best, second = logits[0].topk(2).values.tolist()
        if best - second < NEAR_TIE:
            return new[:place]
    return new


def assert_right(alone: Any, tokenizer: Any, prompt: str, tokens: int, text: str) -> None:
    new = alone(prompt, tokens)
    if len(new) == tokens:
        assert text == tokenizer.decode(new)
    else:
        assert text.startswith(tokenizer.decode(new).rstrip("\N{REPLACEMENT CHARACTER}"))


def still_right(server: Any, model: Any, alone: Any, tokenizer: Any) -> None:
    prompt, tokens = PROMPTS[0], 12
    (answer,) = ask(server.grpc, model, [prompt.encode()], {"max_tokens": tokens, "ignore_eos": True})
    assert_right(alone, tokenizer, prompt, tokens, answer.text)


@pytest.mark.parametrize("model", MODELS)
def test_every_answer_is_what_generate_gives_for_the_prompt_alone(
    server: Any, model: Any, alone: Any, tokenizer: Any
) -> None:
    lengths = [5 + 3 * number for number in range(len(PROMPTS))]
    asked = [{"max_tokens": length, "ignore_eos": True} for length in lengths]
    answers = ask(server.grpc, model, [p.encode() for p in PROMPTS], asked)
    for prompt, tokens, answer in zip(PROMPTS, lengths, answers, strict=True):
        assert_right(alone, tokenizer, prompt, tokens, answer.text)


@pytest.mark.parametrize("model", MODELS)
def test_there_is_one_response_per_token_and_only_the_last_is_final(server: Any, model: Any) -> None:
    for answer in ask(server.grpc, model, [b"The", b"I have"], {"max_tokens": 9, "ignore_eos": True}):
        assert answer.finals == [False] * 8 + [True]


@pytest.mark.parametrize("model", MODELS)
def test_sampled_text_with_broken_characters_joins_to_whole_text(server: Any, model: Any) -> None:
    """At a high temperature tokens that end inside characters abound: the same seed gives the same clean text."""
    asked = {"max_tokens": 40, "ignore_eos": True, "temperature": "30", "seed": 5}
    single, first, second = (
        *ask(server.grpc, model, [b"The"], asked),
        *ask(server.grpc, model, [b"The", b"The"], asked),
    )
    assert single.text == first.text == second.text
    assert "" in single.pieces  # some token did end inside a character
    assert len(single.pieces) == 40


def test_a_newcomer_gets_its_first_token_before_the_others_are_done(server: Any) -> None:
    with slowed(server.run_dir, "iterative-gpt2"), Stream(server.grpc, "iterative-gpt2") as stream:
        stream.send("early", b"I have lived in Seoul", {"max_tokens": 60, "ignore_eos": True})
        assert stream.next()[0] == "early"
        stream.send("late", b"The", {"max_tokens": 5, "ignore_eos": True})
        order: list[Any] = []
        while not order or not order[-1][2]:
            order.append(stream.next())
        assert order[-1][0] == "late"


def test_newcomers_share_the_others_batch_within_two_steps_instead_of_taking_turns(server: Any) -> None:
    """While a step lasts, both are on their way: no thread of Triton's is late then because it has no processor."""
    for _ in range(3):
        before = len(steps(server, "iterative-gpt2"))
        with slowed(server.run_dir, "iterative-gpt2"), Stream(server.grpc, "iterative-gpt2") as stream:
            stream.send("early", b"I have lived in Seoul", {"max_tokens": 30, "ignore_eos": True})
            stream.next()
            stream.send("late", b"The", {"max_tokens": 10, "ignore_eos": True})
            ended = 0
            while ended < 2:
                ended += bool(stream.next()[2])
        later = [step for step in steps(server, "iterative-gpt2")[before:] if step["kind"] == "step"]
        joined = max(number for number, step in enumerate(later) if step["prefill"])
        assert max(step["batch"] for step in later[joined : joined + 3]) == 2


def test_more_sequences_than_slots_all_get_their_answer(server: Any, alone: Any, tokenizer: Any) -> None:
    prompts = [PROMPTS[number % len(PROMPTS)] for number in range(40)]
    asked = {"max_tokens": 10, "ignore_eos": True}
    answers = ask(server.grpc, "iterative-gpt2", [p.encode() for p in prompts], asked)
    for prompt, answer in zip(prompts, answers, strict=True):
        assert_right(alone, tokenizer, prompt, 10, answer.text)


BAD = [
    (b"", {}, "text_input"),
    (b"\xff\xfe", {}, "text_input"),
    (b"a" * 2**20, {}, "text_input"),
    (b"The", {"max_tokens": 0}, "max_tokens"),
    (b"The", {"max_tokens": -7}, "max_tokens"),
    (b"The", {"max_tokens": 2**40}, "max_tokens"),
    (b"The", {"max_tokens": "many"}, "max_tokens"),
    (b"The", {"top_p": "2.0"}, "top_p"),
    (b"The", {"max_token": 5}, "max_token"),
]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(("prompt", "parameters", "name"), BAD, ids=[f"{b[2]}-{n}" for n, b in enumerate(BAD)])
def test_a_bad_request_is_answered_with_an_error_that_names_the_input(
    server: Any, model: Any, prompt: bytes, parameters: Any, name: str
) -> None:
    with pytest.raises(InferenceServerException, match=rf"{name}: "):
        ask(server.grpc, model, [prompt], parameters)


@pytest.mark.parametrize("model", MODELS)
def test_a_bad_request_in_a_batch_leaves_the_others_alone(server: Any, model: Any, alone: Any, tokenizer: Any) -> None:
    with Stream(server.grpc, model) as stream, pytest.raises(InferenceServerException, match="max_tokens"):
        stream.send("bad", b"The", {"max_tokens": 0})
        stream.next()
    still_right(server, model, alone, tokenizer)


@pytest.mark.parametrize("model", MODELS)
def test_the_same_text_streams_over_http(server: Any, model: Any, alone: Any, tokenizer: Any) -> None:
    body = {"text_input": PROMPTS[0], "max_tokens": 8, "ignore_eos": True}
    request = urllib.request.Request(
        f"http://{server.http}/v2/models/{model}/generate_stream", json.dumps(body).encode()
    )
    with urllib.request.urlopen(request, timeout=DEADLINE_S) as reply:
        events = [json.loads(line[6:]) for line in reply if line.startswith(b"data: ")]
    assert len(events) == 8
    assert_right(alone, tokenizer, PROMPTS[0], 8, "".join(event["text_output"] for event in events))


# Over HTTP: a gRPC stream whose client has gone may end Triton 2.51 (docs/operate/security.md).
KILLED_CLIENT = """
import json, urllib.request
body = {{"text_input": "I have lived in Seoul", "max_tokens": 60, "ignore_eos": True}}
request = urllib.request.Request("http://{http}/v2/models/{model}/generate_stream", json.dumps(body).encode())
with urllib.request.urlopen(request) as stream:
    stream.readline()
    print("streaming", flush=True)
    stream.read()
"""


@pytest.mark.parametrize("model", MODELS)
def test_a_client_killed_in_mid_stream_leaves_no_sequence_behind(
    server: Any, model: Any, alone: Any, tokenizer: Any
) -> None:
    script = KILLED_CLIENT.format(http=server.http, model=model)
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout
        assert client.stdout.readline() == "streaming\n"
        os.kill(client.pid, signal.SIGKILL)
    still_right(server, model, alone, tokenizer)
    eventually(lambda: pending(server, model) == 0, "nothing is pending any more")
    eventually(lambda: step_after_sweep(server, model)["slots_used"] == 0, "no slot is held any more")


def steps(server: Any, model: str) -> list[dict[str, Any]]:
    """Those that are written to the end of their line."""
    (log,) = server.run_dir.glob(f"steps-{model}-*.jsonl")
    return [json.loads(line) for line in log.read_text().splitlines(keepends=True) if line.endswith("\n")]


def step_after_sweep(server: Any, model: str) -> dict[str, Any]:
    ask(server.grpc, model, [b"The"], {"max_tokens": 1})
    return steps(server, model)[-1]


def pending(server: Any, model: str) -> int:
    with urllib.request.urlopen(f"http://{server.metrics}/metrics", timeout=DEADLINE_S) as page:
        for line in page.read().decode().splitlines():
            if line.startswith("nv_inference_pending_request_count") and f'model="{model}"' in line:
                return int(float(line.split()[-1]))
    raise AssertionError(f"no pending count of {model} on /metrics")


def eventually(check: Any, what: str, timeout: float = DEADLINE_S) -> None:
    deadline = time.monotonic() + timeout
    while not check():
        assert time.monotonic() < deadline, f"not within {timeout:g} s: {what}"
