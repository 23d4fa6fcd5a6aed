"""From messages to the text that a model continues: its tokenizer's chat template, else a plain one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from labdoor.errors import ApiError
from labdoor.requests import Message
from labkit.errors import LabError

#: For a model without a template of its own: a line for each turn, and the beginning of the answer's line.
PLAIN = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
PLAIN_STOP = "\nuser:"  # a base model goes on with the next question
SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token")


class ChatTemplate:
    """A chat template.

    Args:
        source: Jinja, as Hugging Face's tokenizers have it.
        words: the tokenizer's special tokens by their names ("bos_token").
        stops: stop strings that the template itself needs.
    """

    def __init__(self, source: str, words: dict[str, str], stops: Sequence[str] = ()) -> None:
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        environment.globals["raise_exception"] = _refuse
        self._template, self._words, self.stops = environment.from_string(source), words, stops

    @classmethod
    def of(cls, folder: Path) -> ChatTemplate:
        """The chat template of the tokenizer in a folder. Raises LabError: it has one that cannot be read."""
        try:
            config = _json(folder / "tokenizer_config.json")
            source = config.get("chat_template")
            if isinstance(source, list):  # several by name
                source = next((named["template"] for named in source if named["name"] == "default"), None)
            file = folder / "chat_template.jinja"
            if file.is_file():
                source = file.read_text(encoding="utf-8")
            if not source:
                return cls(PLAIN, {}, (PLAIN_STOP,))
            return cls(source, {name: _word(config[name]) for name in SPECIAL_TOKENS if config.get(name)})
        except (OSError, ValueError, KeyError, TypeError, TemplateError) as error:
            raise LabError(
                f"the chat template in {folder} cannot be used",
                str(error),
                "labctl weights list",
                code="chat-template-unusable",
            ) from None

    def render(self, messages: Sequence[Message]) -> str:
        """The text that the model continues. Raises Refusal if the template takes no such conversation."""
        turns = [{"role": "system" if m.role == "developer" else m.role, "content": m.text} for m in messages]
        try:
            return self._template.render(messages=turns, add_generation_prompt=True, **self._words)
        except (TemplateError, TypeError, ValueError, OverflowError) as error:
            raise ApiError(400, f"messages: the model's chat template refuses them: {error}", "messages") from None


def _json(path: Path) -> dict[str, Any]:
    data = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return data if isinstance(data, dict) else {}


def _word(token: Any) -> str:
    return str(token["content"] if isinstance(token, dict) else token)


def _refuse(message: str) -> None:
    raise TemplateError(message)
