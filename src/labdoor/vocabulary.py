"""What a model's tokenizer knows: how many tokens a text has, and how a chat becomes one text."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import Template, TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from labdoor.errors import ApiError
from labdoor.requests import Message
from labkit.errors import LabError

SHORT, PIECE = 2**11, 2**16  # characters of a text that are counted at once: in the loop; in a thread
COUNTING = ThreadPoolExecutor(2, "count")
#: For a model without a template of its own: a line for each turn, and the beginning of the answer's line.
PLAIN = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
PLAIN_STOP = "\nuser:"  # a base model goes on with the next question
SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token")


def _template(source: str) -> Template:
    def refuse(message: str) -> NoReturn:
        raise TemplateError(message)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.globals["raise_exception"] = refuse
    return environment.from_string(source)


@dataclass(frozen=True)
class Vocabulary:
    """A model's tokenizer and chat template; without a tokenizer tokens are not counted.

    Attributes:
        end_id: the token that ends a text.
        context: tokens that the model sees.
        template: Jinja, as Hugging Face's tokenizers have it.
        special: the tokens that it names ("bos_token").
        stops: stop strings that it needs.
    """

    tokenizer: Tokenizer | None = None
    end_id: int | None = None
    context: int | None = None
    template: Template = field(default_factory=lambda: _template(PLAIN))
    special: dict[str, str] = field(default_factory=dict)
    stops: Sequence[str] = (PLAIN_STOP,)

    @classmethod
    def of(cls, folder: str) -> Vocabulary:
        """That of a folder with a tokenizer, else the plain one. Raises LabError: it cannot be read."""
        path = Path(folder)
        if not folder or not (path / "tokenizer.json").is_file():
            return cls()
        try:
            tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
            tokenizer.no_truncation()
            model, words = _json(path / "config.json"), _json(path / "tokenizer_config.json")
            end_id = model.get("eos_token_id")
            known = {
                "tokenizer": tokenizer,
                "end_id": end_id if isinstance(end_id, int) else None,
                "context": model.get("max_position_embeddings") or model.get("n_positions"),
            }
            source = words.get("chat_template")
            if isinstance(source, list):  # several by name
                source = next((named["template"] for named in source if named["name"] == "default"), None)
            if (file := path / "chat_template.jinja").is_file():
                source = file.read_text(encoding="utf-8")
            if not source:
                return cls(**known)
            special = {name: _word(words[name]) for name in SPECIAL_TOKENS if words.get(name)}
            return cls(**known, template=_template(source), special=special, stops=())
        except Exception as error:  # the tokenizers library raises no type of its own
            raise LabError(
                f"the tokenizer in {folder} cannot be read",
                str(error),
                "labctl weights list",
                code="tokenizer-unreadable",
            ) from None

    def render(self, messages: Sequence[Message]) -> str:
        """The text that the model continues. Raises ApiError if the template takes no such conversation."""
        turns = [{"role": "system" if m.role == "developer" else m.role, "content": m.text} for m in messages]
        try:
            return self.template.render(messages=turns, add_generation_prompt=True, **self.special)
        except (TemplateError, TypeError, ValueError, OverflowError) as error:
            raise ApiError(400, f"messages: the model's chat template refuses them: {error}", "messages") from None

    async def count(self, text: str, special: bool = True) -> int | None:
        """How many tokens a text has, but no more than it takes to exceed the context; None without a tokenizer.

        A text of more than one piece is counted piece by piece: it may seem to have a token more for each.
        """
        if self.tokenizer is None:
            return None
        if len(text) <= SHORT:
            return self._count(self.tokenizer, text, special)
        return await asyncio.get_running_loop().run_in_executor(COUNTING, self._count, self.tokenizer, text, special)

    def _count(self, tokenizer: Tokenizer, text: str, special: bool) -> int:
        tokens = 0
        for start in range(0, len(text), PIECE):
            # The one method of the tokenizer that lets other threads run, and the one that keeps the least.
            (piece,) = tokenizer.encode_batch_fast(
                [text[start : start + PIECE]], add_special_tokens=special and not start
            )
            tokens += len(piece)
            if tokens > (self.context or math.inf):
                break
        return tokens


def _json(path: Path) -> dict[str, Any]:
    """The object in a file; {} where there is none. Raises ValueError: it holds something else."""
    data = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    if not isinstance(data, dict):
        raise ValueError(f"{path.name} is no JSON object")
    return data


def _word(token: Any) -> str:
    return str(token["content"] if isinstance(token, dict) else token)
