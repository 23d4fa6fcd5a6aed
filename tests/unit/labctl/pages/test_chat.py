"""The chat page: a real Gradio app on loopback, before a stand-in for a model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import pytest
from chat_stand_in import SPEED, STILL, chat_stand_in
from click.testing import CliRunner
from gradio_client import Client
from gradio_client.exceptions import AppError
from lab_errors import is_lab_error, lab_error

from labctl.cli.main import cli
from labctl.pages import chat
from labctl.triton import conversation
from labkit.evidence.records import RequestRecord


@pytest.fixture(scope="module")
def page() -> Iterator[Client]:
    """A client of the page before a stand-in for a model (``chat_stand_in``)."""
    with chat_stand_in() as address:
        client = Client(address, verbose=False)
        yield client
        client.close()


def answers(page: Client, prompt: str, temperature: float = 0.0, seed: float = -1) -> list[str]:
    """What the page showed for a prompt, one text after the other."""
    job = page.submit(prompt, "m", 5, temperature, seed, api_name="/answer")
    job.result(timeout=60)
    return [str(text) for text in job.outputs()]


def test_an_answer_grows_and_its_speed_stands_below_it(page: Client) -> None:
    assert answers(page, "a")[-2:] == [f"{chat.fence_markdown('a b')}\n", f"{chat.fence_markdown('a b c')}\n{SPEED}"]


def test_the_model_gets_the_prompt_and_each_dial(page: Client) -> None:
    (*_, shown) = answers(page, "arguments", temperature=0.5, seed=9)
    reached = json.loads(shown.strip("`\n"))
    assert reached == ["nowhere:1", "m", "arguments", 5, {"temperature": 0.5, "seed": 9}, "", None]


def test_a_model_with_a_chat_template_gets_the_whole_chat_and_its_answer_stands_alone(tmp_path: Path) -> None:
    template = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}[answer]"
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    (tmp_path / "config.json").write_text('{"eos_token_id": 7}')
    with chat_stand_in(str(tmp_path)) as address:
        page = Client(address, verbose=False)
        first, (*_, shown) = answers(page, "a")[-1], answers(page, "arguments")
        page.close()
    assert first == f"{chat.fence_markdown('a b c')}\n{SPEED}"
    reached = json.loads(shown.strip("`\n"))
    assert (reached[2], reached[-1]) == ("[user]a[assistant]a b c[user]arguments[answer]", 7)


@pytest.mark.parametrize("dials", [(2.5, -1), (0.0, 1e9)])
def test_a_dial_beyond_its_range_reaches_no_model(page: Client, dials: tuple[float, float]) -> None:
    with pytest.raises(AppError, match="maximum"):
        answers(page, "a", *dials)


def test_an_error_stands_below_what_came_of_the_text(page: Client) -> None:
    error = chat.fence_markdown("the connection broke\n<b>why</b>\nTry: labctl status")
    assert answers(page, "break")[-1] == f"{chat.fence_markdown('a b')}\n{error}"


@pytest.mark.parametrize("prompt", ["", " \n"])
def test_an_empty_prompt_asks_no_model_and_says_what_to_do(page: Client, prompt: str) -> None:
    assert answers(page, prompt) == [chat.NO_PROMPT]


def test_a_clock_that_stands_still_is_said_before_an_answer_comes(page: Client) -> None:
    """Fault of a paused stack: the page seemed to hang."""
    assert answers(page, "a")[0] == STILL


def test_a_port_that_is_taken_is_an_error_with_a_remedy(page: Client) -> None:
    with lab_error("port-taken"), chat.serve_chat(cast(Any, None), urlsplit(page.src).port):
        pass


@pytest.mark.parametrize("text", ["def f():\n    return '*not* **Markdown**'", "a ``` b ```` c"])
def test_a_text_is_shown_as_it_is_whatever_is_in_it(text: str) -> None:
    shown = chat.fence_markdown(text)
    fence = shown.split("\n")[0]
    assert shown == f"{fence}\n{text}\n{fence}"
    assert fence not in text


def test_every_dial_is_sent_but_a_seed_that_is_off() -> None:
    values = {"temperature": 0, "top_k": 7.0, "top_p": 0.5, "repetition_penalty": 1, "seed": -1.0}
    assert chat.sampling_values(values) == {"temperature": 0.0, "top_k": 7, "top_p": 0.5, "repetition_penalty": 1.0}
    assert chat.sampling_values({"seed": 3.0}) == {"seed": 3}


def test_the_speed_of_a_streamed_and_of_a_whole_answer_is_told_differently() -> None:
    streamed = RequestRecord("1", "m", "a", start=1.0, responses=[(1.05, ""), (1.1, "b"), (1.5, "c")], tokens=2)
    assert conversation.speed(streamed, True) == "first token after 100 ms; 2 tokens in 0.50 s, 4.0 tokens/s"
    whole = RequestRecord("1", "m", "a", start=1.0, responses=[(1.5, "b c")], tokens=2)
    assert conversation.speed(whole, False) == "the whole answer came after 500 ms; 2 tokens in 0.50 s, 4.0 tokens/s"
    whole.tokens = 0  # nobody could count them
    assert conversation.speed(whole, False) == "the whole answer came after 500 ms"


def test_chat_with_a_stack_that_is_not_up_says_how_to_bring_it_up() -> None:
    result = CliRunner().invoke(cli, ["chat", "codegen"])
    is_lab_error(result.exception, "stack-not-up", "labctl up codegen")


def test_chat_with_a_stack_without_texts_names_those_that_have_some() -> None:
    result = CliRunner().invoke(cli, ["chat", "sequence-batcher"])
    is_lab_error(result.exception, "text-model-none", "iterative")
