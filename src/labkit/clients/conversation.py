"""One answer for a person who watches: the text as it grows, and how fast it came."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.clients.ask import connection
from labkit.clients.base import TELL_S, InFlightClient, Silence
from labkit.clients.text_model import TextModel
from labkit.records import RequestRecord

TIMEOUT_S = 300.0
SHOWN_S = 0.1  # a page that is redrawn for each of several hundred tokens a second lags behind


@dataclass(frozen=True)
class PartialAnswer:
    """An answer so far: ``text`` is prompt and continuation; ``speed`` is set when it is whole."""

    text: str
    speed: str = ""


def ask_model(
    endpoint: str,
    model: str,
    prompt: str,
    tokens: int,
    sampling: Mapping[str, Any],
    tokenizer_dir: str = "",
    standing: Callable[[], bool] = bool,
) -> Iterator[PartialAnswer]:
    """The answer as it grows, at least once; the last one is whole.

    Args:
        tokenizer_dir: of a stack of ours; "": of any server, whose own counts the tokens where it is seen from here.
        standing: whether the model's clock stands still, so that no answer can come.

    Raises:
        LabError: in Triton's words.
    """
    text_model = TextModel.of(endpoint, model)
    with connection(text_model, endpoint) as stream:
        record = text_model.send(stream, prompt, tokens, sampling=sampling)
        before = prompt if text_model.answers_alone else ""
        for text in growing_text(stream, record, Silence(TIMEOUT_S, standing)):
            if text_model.decoupled:
                yield PartialAnswer(before + text)
        stream.wait(record, timeout=TELL_S)  # raises its error
    text = before + record.text
    if text_model.end_text:
        text = text.partition(text_model.end_text)[0]
    if tokenizer_dir and text_model.decoupled and not text_model.tells_end:
        record.tokens = len(record.responses)  # of a stack of ours: one each
    else:
        record.tokens = count_tokens(text.removeprefix(prompt), tokenizer_dir or text_model.tokenizer_dir)
    yield PartialAnswer(text, speed(record, text_model.decoupled))


def growing_text(stream: InFlightClient, record: RequestRecord, patience: Silence) -> Iterator[str]:
    """The text until it ends, whenever there is more of it, but not more often than can be read.

    Raises:
        LabError: ``patience`` is over.
    """
    shown = 0
    while not stream.ended(record, SHOWN_S):
        if len(record.responses) > shown:
            shown = len(record.responses)
            yield record.text
        patience.check(shown)


def speed(record: RequestRecord, streamed: bool) -> str:
    """Time to the first token, and tokens/s in words, responses/s where tokens are not counted.

    A whole answer has no first token.
    """
    if not record.text:
        return "the model added nothing"
    seconds = record.latency_ms / 1e3
    what = "tokens" if record.tokens else "responses"
    rate = f"{record.output_tokens} {what} in {seconds:.2f} s, {record.output_tokens / max(seconds, 1e-9):.1f} {what}/s"
    if streamed:
        first = next(at for at, text in record.responses if text) - record.start
        return f"first token after {first * 1e3:.0f} ms; {rate}"
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
