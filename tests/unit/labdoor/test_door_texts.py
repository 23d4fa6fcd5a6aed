"""The door: where a stop string cuts a text, and how a chat becomes one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labdoor import requests
from labdoor.errors import ApiError
from labdoor.stops import Scanner
from labdoor.templates import ChatTemplate

# -- stop strings ------------------------------------------------------------------------------------------------------


def cut(text: str, words: list[str]) -> str:
    """The answer by the definition: the text up to the stop string that is complete first."""
    for end in range(len(text) + 1):
        if found := [word for word in words if text[:end].endswith(word)]:
            return text[: end - max(map(len, found))]
    return text


@given(st.lists(st.text("abc", max_size=4), max_size=12), st.lists(st.text("abc", min_size=1, max_size=4), max_size=3))
def test_a_text_is_cut_at_the_first_stop_string_however_it_comes(pieces: list[str], words: list[str]) -> None:
    scanner, said = Scanner(words), ""
    for piece in pieces:
        said += scanner.add(piece)
        assert cut("".join(pieces), words).startswith(said), "nothing of a stop string was let through"
        if scanner.found:
            break
    else:
        said += scanner.add("", last=True)
    assert said == cut("".join(pieces), words)


# -- templates ---------------------------------------------------------------------------------------------------------

TURNS = [requests.Message(role="system", content="Be brief."), requests.Message(role="user", content="Hi")]


def test_a_tokenizers_own_template_is_used(tmp_path: Path) -> None:
    source = (
        "{{ bos_token }}{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}{% endfor %}"
        "{% if add_generation_prompt %}[answer]{% endif %}"
    )
    config = {"chat_template": source, "bos_token": {"content": "<s>"}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert ChatTemplate.of(tmp_path).render(TURNS) == "<s>[system]Be brief.[user]Hi[answer]"


def test_a_model_without_a_template_gets_the_plain_one(tmp_path: Path) -> None:
    template = ChatTemplate.of(tmp_path)
    assert template.render(TURNS) == "system: Be brief.\nuser: Hi\nassistant:"
    assert list(template.stops) == ["\nuser:"]


def test_a_template_that_refuses_a_conversation_says_so(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("{{ raise_exception('no system turns') }}")
    with pytest.raises(ApiError, match="no system turns"):
        ChatTemplate.of(tmp_path).render(TURNS)


def test_a_template_reaches_nothing_of_python(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("{{ messages.__class__.__mro__ }}")
    with pytest.raises(ApiError):
        ChatTemplate.of(tmp_path).render(TURNS)
