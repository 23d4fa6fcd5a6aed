"""A program: the chat page on loopback, before a stand-in for a model. It prints its address.

The answer depends on the prompt: one with "arguments" gives what reached the model, as JSON; "break" ends in an error;
any other grows twice. With a folder's chat template it stands behind the whole chat, as a model's does.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from labctl.pages import chat
from labctl.triton import conversation
from labctl.triton.conversation import PartialAnswer
from labkit.client.text_model import Input, TextModel
from labkit.errors import LabError

STILL = "The clock stands still."
SPEED = "3 tokens in 1.00 s, 3.0 tokens/s"
CHOICES = {name: Input(name, "FP32", (1,)) for name in ("temperature", "seed")}


@contextmanager
def chat_stand_in(tokenizer_dir: str = "") -> Iterator[str]:
    """The program, for the time of a block; yields the page's address."""
    with subprocess.Popen([sys.executable, __file__, tokenizer_dir], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        try:
            yield process.stdout.readline().strip()
        finally:
            process.kill()


def _ask(*arguments: Any, standing: Any, end_id: int | None) -> Iterator[PartialAnswer]:
    prompt = arguments[2]
    before = prompt if arguments[5] else ""
    if "arguments" in prompt:
        yield PartialAnswer(before + json.dumps([*arguments, end_id]))
        return
    yield PartialAnswer(f"{before}a b")
    if prompt == "break":
        raise LabError("the connection broke", "<b>why</b>", "labctl status", code="connection-broken")
    yield PartialAnswer(f"{before}a b c", SPEED)


def _of(endpoint: str, name: str) -> TextModel:
    return TextModel(name, {}, "text_input", "max_tokens", "text_output", decoupled=True, sampling=CHOICES)


if __name__ == "__main__":
    conversation.ask_model = _ask  # type: ignore[assignment]
    TextModel.of = _of  # type: ignore[method-assign]
    page = chat.chat_page("nowhere:1", ["m"], "m", sys.argv[1], "A lab", halted=lambda: STILL)
    with chat.serve_chat(page, 0) as address:
        print(address, flush=True)
        chat.wait()
