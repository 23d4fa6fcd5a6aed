"""One question to a text model of a running stack: the answer's text as it grows, and how fast it came."""

from __future__ import annotations

import contextlib
import functools
import queue
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.client.ask import TELL_S, InFlightClient, Silence, TextStream, UnaryClient
from labkit.client.text_model import TextModel
from labkit.errors import LabError
from labkit.evidence.records import RequestRecord

TIMEOUT_S = 300.0  # without a response
RESPONSES = 4  # for each token that was asked for, at most; an answer begins and ends with some that have no token
MOST_TEXT = 64 * 2**20  # characters of an answer
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
    tokenizer_dir: str | None = None,
    standing: Callable[[], bool] = bool,
    end_id: int | None = None,
) -> Iterator[PartialAnswer]:
    """The answer as it grows, at least once; the last one is whole.

    Args:
        tokenizer_dir: of a stack of ours; None: of any server, whose own counts the tokens where it is seen from here.
        standing: whether the model's clock stands still, so that no answer can come.
        end_id: the token that ends the answer, for a model that must be told.

    Raises:
        LabError: in Triton's words.
    """
    text_model = TextModel.of(endpoint, model)
    with connection(text_model, endpoint) as stream:
        record = text_model.send(stream, prompt, tokens, sampling=sampling, end_id=end_id)
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
    while (responses := stream.so_far(record, SHOWN_S)) is not None:
        if len(responses) > shown:
            shown = len(responses)
            yield "".join(text for _, text in responses)
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


def count_tokens(text: str, tokenizer_dir: str | None) -> int:
    """Tokens of a text; 0 if there is no tokenizer to ask."""
    if not tokenizer_dir or not (path := Path(tokenizer_dir) / "tokenizer.json").is_file():
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


def generate(
    endpoint: str, model: str, prompt: str, tokens: int, stream: bool, standing: Callable[[], bool] = bool
) -> Iterator[str]:
    """The prompt and what the model makes of it, in pieces as they arrive with ``stream``, else as one.

    Args:
        standing: whether the model's clock stands still, so that no answer can come.

    Raises:
        LabError: in Triton's words.
    """
    arrived: queue.SimpleQueue[bool] = queue.SimpleQueue()
    responses = characters = 0  # so far

    def take_response(record: RequestRecord) -> None:
        nonlocal responses, characters
        responses += 1
        characters += len(record.responses[-1][1]) if record.responses else 0
        if responses > RESPONSES * (tokens + 4) or characters > MOST_TEXT:
            channel.give_up(record, f"{tokens} tokens were asked for, and the answer does not end")
        arrived.put(True)

    if tokens < 1:
        raise LabError(
            f"{tokens} output tokens cannot be generated", "", "-o takes 1 or more", code="tokens-out-of-range"
        )
    text_model = TextModel.of(endpoint, model)
    with connection(text_model, endpoint, on_token=take_response) as channel:
        record = text_model.send(channel, prompt, tokens)
        if text_model.answers_alone:
            yield prompt
        yielded = 0
        patience = Silence(TIMEOUT_S, standing)
        while not (record.end if stream else channel.ended(record, TELL_S)):
            if stream:
                with contextlib.suppress(queue.Empty):
                    arrived.get(timeout=TELL_S)
                channel.check()
                pieces = [text for _, text in list(record.responses)[yielded:]]
                yielded += len(pieces)
                yield "".join(pieces)
            patience.check(len(record.responses))
        channel.wait(record, timeout=TELL_S)  # raises its error
        yield "".join(text for _, text in record.responses[yielded:])


def connection(model: TextModel, endpoint: str, **stream: Any) -> InFlightClient:
    """The client for one question to that model: a stream (with these arguments) unless the model has none to give."""
    return UnaryClient(endpoint) if model.cached else TextStream(endpoint, **stream)
