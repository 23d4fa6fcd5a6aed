"""How a chat becomes one text: the template of a model's tokenizer, as Hugging Face's tokenizers have it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import Template, TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from labkit.errors import LabError
from labsched.log.files import json_object

SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token")


@dataclass(frozen=True)
class ChatTemplate:
    """A chat template; ``special``: the tokens that it names ("bos_token")."""

    template: Template
    special: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, source: str, special: Mapping[str, str] | None = None) -> ChatTemplate:
        """Read a template's source. Raises TemplateError."""

        def refuse(message: str) -> NoReturn:
            raise TemplateError(message)

        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        environment.globals["raise_exception"] = refuse
        return cls(environment.from_string(source), special or {})

    @classmethod
    def of(cls, folder: str) -> ChatTemplate | None:
        """Read the template of a folder with a tokenizer; None where it has none. Raises LabError."""
        path = Path(folder)
        if not (path / "tokenizer.json").is_file():
            return None
        try:
            words = object_in(path / "tokenizer_config.json")
            source = words.get("chat_template")
            if isinstance(source, list):  # several by name
                source = next((named["template"] for named in source if named["name"] == "default"), None)
            if (file := path / "chat_template.jinja").is_file():
                source = file.read_text(encoding="utf-8")
            special = {name: _word(words[name]) for name in SPECIAL_TOKENS if words.get(name)}
            return cls.parse(source, special) if source else None
        except (OSError, ValueError, TypeError, LookupError, TemplateError) as error:
            raise unreadable_tokenizer(folder, error) from None

    def render(self, turns: Sequence[Mapping[str, str]]) -> str:
        """Make the text that the model continues. Raises LabError: the template takes no such conversation."""
        try:
            return self.template.render(messages=turns, add_generation_prompt=True, **self.special)
        except (TemplateError, TypeError, ValueError, OverflowError) as error:
            raise LabError("the model's chat template refuses the chat", str(error), code="chat-refused") from None


def end_id_of(folder: str) -> int | None:
    """Read which token ends a text of the model in a folder; None where that is not one token. Raises LabError."""
    try:
        end_id = object_in(Path(folder) / "config.json").get("eos_token_id")
    except (OSError, ValueError) as error:
        raise unreadable_tokenizer(folder, error) from None
    return end_id if isinstance(end_id, int) else None


def object_in(path: Path) -> dict[str, Any]:
    """Read the object in a JSON file; {} where there is no file. Raises ValueError: it holds something else."""
    return json_object(path.read_text(encoding="utf-8")) if path.is_file() else {}


def unreadable_tokenizer(folder: str, error: Exception) -> LabError:
    """Say that the tokenizer in a folder cannot be used."""
    what = f"the tokenizer in {folder} cannot be read"
    return LabError(what, str(error), "labctl weights list", code="tokenizer-unreadable")


def _word(token: Any) -> str:
    return str(token["content"] if isinstance(token, dict) else token)
