"""One answer for a person who watches: the text as it grows, and how fast it came."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.clients.ask import connection
from labkit.clients.base import STALLED
from labkit.clients.stream import TextStream
from labkit.clients.text_model import TextModel
from labkit.errors import LabError
from labkit.records import RequestRecord

TIMEOUT_S = 300.0
SHOWN_S = 0.1  # a page that is redrawn for each of several hundred tokens a second lags behind


@dataclass(frozen=True)
class PartialAnswer:
    """An answer so far: ``text`` is prompt and continuation; ``speed`` is set when it is whole."""

    text: str
    speed: str = ""


def ask_model(
    endpoint: str, model: str, prompt: str, tokens: int, sampling: Mapping[str, Any], tokenizer_dir: str = ""
) -> Iterator[PartialAnswer]:
    """The answer as it grows, at least once; the last one is whole.

    Args:
        tokenizer_dir: counts the tokens of an answer that comes whole; "": the server's, where it is seen from here.

    Raises:
        LabError: in Triton's words.
    """
    text_model = TextModel.of(endpoint, model)
    with connection(text_model, endpoint) as stream:
        record = text_model.send(stream, prompt, tokens, sampling=sampling)
        before = prompt if text_model.answers_alone else ""
        if isinstance(stream, TextStream) and text_model.decoupled:
            for text in growing_text(stream, record):
                yield PartialAnswer(before + text)
        stream.wait(record, timeout=TIMEOUT_S)
    text = before + record.text
    if text_model.end_text:
        text = text.partition(text_model.end_text)[0]
    if not text_model.decoupled:
        record.tokens = count_tokens(text.removeprefix(prompt), tokenizer_dir or text_model.tokenizer_dir)
    yield PartialAnswer(text, speed(record, text_model.decoupled))


def growing_text(stream: TextStream, record: RequestRecord) -> Iterator[str]:
    """The text from its first token until it ends, whenever there is more of it, but not more often than can be read.

    Raises:
        LabError: nothing came for ``TIMEOUT_S`` seconds.
    """
    stream.wait_first(record, timeout=TIMEOUT_S)
    shown = 0
    while not record.end:
        if len(record.responses) > shown:
            shown = len(record.responses)
            yield record.text
        if stream.ended(record, SHOWN_S):
            return
        silent = time.monotonic() - record.responses[-1][0]
        if silent > TIMEOUT_S:
            raise LabError(f"no token came for {silent:.0f} s", "", STALLED, code="token-late")


def speed(record: RequestRecord, streamed: bool) -> str:
    """Time to the first token and tokens/s, in words; a whole answer has no first token, and may not be counted."""
    if not record.responses:
        return "the model added nothing"
    seconds = record.latency_ms / 1e3
    rate = f"{record.output_tokens} tokens in {seconds:.2f} s, {record.output_tokens / max(seconds, 1e-9):.1f} tokens/s"
    if streamed:
        return f"first token after {record.ttft_ms:.0f} ms; {rate}"
    whole = f"the whole answer came after {record.ttft_ms:.0f} ms"
    return f"{whole}; {rate}" if record.tokens else whole


def count_tokens(text: str, tokenizer_dir: str) -> int:
    """Tokens of a text; 0 if there is no tokenizer to ask."""
    path = Path(tokenizer_dir) / "tokenizer.json"
    if not tokenizer_dir or not path.is_file():
        return 0
    try:
        tokenizer = _tokenizer(path, path.stat().st_mtime_ns)
    except ImportError:
        return 0
    return len(tokenizer.encode(text, add_special_tokens=False).ids)


@functools.lru_cache(maxsize=2)
def _tokenizer(path: Path, changed: int) -> Any:
    """Read once: that takes up to a second. Raises ImportError."""
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(path))
