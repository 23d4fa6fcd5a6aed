"""The door: where a stop string cuts a text, and how a chat becomes one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from checkout import ROOT
from hypothesis import given
from hypothesis import strategies as st
from lab_errors import lab_error

from labdoor import requests
from labdoor.errors import ApiError
from labdoor.generation import Scanner
from labdoor.vocabulary import Vocabulary

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


TINY = ROOT / "labs" / "shared" / "models" / "tiny-gpt2"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """That of a tokenizer without a template."""
    shutil.copyfile(TINY / "tokenizer.json", tmp_path / "tokenizer.json")
    return tmp_path


def test_a_tokenizers_own_template_is_used(folder: Path) -> None:
    source = (
        "{{ bos_token }}{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}{% endfor %}"
        "{% if add_generation_prompt %}[answer]{% endif %}"
    )
    config = {"chat_template": source, "bos_token": {"content": "<s>"}}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    words = Vocabulary.of(str(folder))
    assert words.render(TURNS) == "<s>[system]Be brief.[user]Hi[answer]"
    assert list(words.stops) == []


def test_a_model_without_a_template_gets_the_plain_one(folder: Path) -> None:
    words = Vocabulary.of(str(folder))
    assert words.render(TURNS) == "system: Be brief.\nuser: Hi\nassistant:"
    assert list(words.stops) == ["\nuser:"]


def test_a_template_that_refuses_a_conversation_says_so(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("{{ raise_exception('no system turns') }}")
    with pytest.raises(ApiError, match="no system turns"):
        Vocabulary.of(str(folder)).render(TURNS)


def test_a_template_reaches_nothing_of_python(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("{{ messages.__class__.__mro__ }}")
    with pytest.raises(ApiError):
        Vocabulary.of(str(folder)).render(TURNS)


def test_a_template_that_cannot_be_read_is_refused_at_the_start(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("{% for %}")
    with lab_error("tokenizer-unreadable"):
        Vocabulary.of(str(folder))
