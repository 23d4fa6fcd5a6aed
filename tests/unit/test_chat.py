"""What the chat page says to a model and to a person."""

from __future__ import annotations

from typing import Any

import pytest
from click.testing import CliRunner

from labctl.cli.main import cli
from labctl.pages import chat
from labkit.clients import conversation
from labkit.clients.conversation import Answer
from labkit.clients.text_model import TextModel
from labkit.errors import LabError
from labkit.records import RequestRecord


def test_every_dial_is_said_but_a_seed_that_is_off() -> None:
    values = {"temperature": 0, "top_k": 7.0, "top_p": 0.5, "repetition_penalty": 1, "seed": -1.0}
    assert chat.wishes(values) == {"temperature": 0.0, "top_k": 7, "top_p": 0.5, "repetition_penalty": 1.0}
    assert chat.wishes({"seed": 3.0}) == {"seed": 3}


@pytest.mark.parametrize("text", ["def f():\n    return '*not* **Markdown**'", "a ``` b ```` c"])
def test_a_text_is_shown_as_it_is_whatever_is_in_it(text: str) -> None:
    shown = chat.fence(text)
    fence = shown.split("\n")[0]
    assert shown == f"{fence}\n{text}\n{fence}"
    assert fence not in text


def page(monkeypatch: pytest.MonkeyPatch, ask: Any) -> chat.Page:
    model = TextModel("m", {}, "text_input", "", "text_output", decoupled=True)
    monkeypatch.setattr(TextModel, "of", lambda endpoint, name: model)
    monkeypatch.setattr(conversation, "ask", ask)
    return chat.Page("nowhere:1", ["m"], "m", "", "A lab")


def test_an_answer_grows_under_the_prompt_and_the_speed_is_told_at_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def ask(*arguments: Any) -> Any:
        asked.append(arguments)
        yield from (Answer("a b"), Answer("a b c", "fast"))

    run = page(monkeypatch, ask).answer(("temperature", "seed"))
    shown = [*run("a", [], "m", 5.0, 0.5, 9.0)]
    assert [(history[-1]["content"], speed) for history, speed in shown] == [
        (chat.fence("a"), ""),
        (chat.fence("a b"), ""),
        (chat.fence("a b c"), "fast"),
    ]
    assert asked == [("nowhere:1", "m", "a", 5, {"temperature": 0.5, "seed": 9}, "")]


def test_a_clock_that_stands_still_is_said_while_no_answer_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault of a paused stack: the page seemed to hang."""
    chatting = page(monkeypatch, lambda *arguments: iter([Answer("a b", "fast")]))
    chatting.scheduler = chat.Scheduler("labctl watch x", str, lambda: "The clock stands still")
    assert [speed for _, speed in chatting.answer(())("a", [], "m", 5.0)] == ["The clock stands still", "fast"]


def test_an_error_is_an_answer_in_plain_words(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(*arguments: Any) -> Any:
        raise LabError("m answered with an error", "temperature: too hot", "labctl status")
        yield

    *_, (history, speed) = page(monkeypatch, ask).answer(())("a", [], "m", 5.0)
    assert speed == ""
    for part in ("m answered with an error", "temperature: too hot", "labctl status"):
        assert part in history[-1]["content"]


def test_an_error_stands_below_what_came_of_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(*arguments: Any) -> Any:
        yield Answer("a b")
        raise LabError("the connection to the server broke")

    *_, (history, speed) = page(monkeypatch, ask).answer(())("a", [], "m", 5.0)
    assert [message["content"] for message in history] == [
        chat.fence("a"),
        chat.fence("a b"),
        "**the connection to the server broke**",
    ]
    assert speed == ""


def test_an_error_is_shown_with_no_markdown_or_html_of_its_own() -> None:
    shown = chat.describe_error(LabError("__init__ failed", "<b>1 * 2 * 3</b>", "labctl status"))
    assert shown == "**\\_\\_init\\_\\_ failed**\n\n\\<b\\>1 \\* 2 \\* 3\\</b\\>\n\nlabctl status"


@pytest.mark.parametrize("prompt", ["", " \n"])
def test_an_empty_prompt_asks_nobody_and_says_what_to_do(monkeypatch: pytest.MonkeyPatch, prompt: str) -> None:
    def ask(*arguments: Any) -> Any:
        raise AssertionError("nobody is to be asked")

    before = [{"role": "user", "content": "earlier"}]
    assert [*page(monkeypatch, ask).answer(())(prompt, before, "m", 5.0)] == [(before, chat.NOTHING)]


def test_the_speed_of_a_streamed_and_of_a_whole_answer_is_told_differently() -> None:
    streamed = RequestRecord("1", "m", "a", start=1.0, responses=[(1.1, "b"), (1.5, "c")])
    assert conversation.speed(streamed, True) == "first token after 100 ms; 2 tokens in 0.50 s, 4.0 tokens/s"
    whole = RequestRecord("1", "m", "a", start=1.0, responses=[(1.5, "b c")], tokens=2)
    assert conversation.speed(whole, False) == "the whole answer came after 500 ms; 2 tokens in 0.50 s, 4.0 tokens/s"
    whole.tokens = 0  # nobody could count them
    assert conversation.speed(whole, False) == "the whole answer came after 500 ms"


def test_chat_with_a_stack_that_is_not_up_says_how_to_bring_it_up() -> None:
    result = CliRunner().invoke(cli, ["chat", "codegen"])
    assert isinstance(result.exception, LabError)
    assert result.exception.remedy == "labctl up codegen"


def test_chat_with_a_stack_without_texts_names_those_that_have_some() -> None:
    result = CliRunner().invoke(cli, ["chat", "sequence-batcher"])
    assert isinstance(result.exception, LabError)
    assert "iterative" in result.exception.remedy
