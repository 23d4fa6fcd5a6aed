"""Triton's answers as OpenAI's API has them: one object, or chunks."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Sequence
from typing import Any, NamedTuple

from openai.types import Completion, CompletionUsage
from openai.types.chat import ChatCompletion
from pydantic import BaseModel

from labdoor.errors import ApiError
from labdoor.logprobs import ScoredToken, chat_form, completion_form
from labdoor.models import PIECE, Model
from labdoor.requests import JSON, ChatRequest, CompletionRequest
from labdoor.triton import Ends, Generation, RequestHeaders, Triton

COMPLETION_TOKENS, CHAT_TOKENS = 16, 256  # where a request does not say; the first is OpenAI's


class Part(NamedTuple):
    """What is new of one choice."""

    choice: int
    text: str
    tokens: Sequence[ScoredToken]  # those whose log probabilities were asked for
    end: Ends | None  # None: more follows


class Answer:
    """The answer to one request: its choices, each with a generation of its own."""

    def __init__(
        self,
        request: CompletionRequest | ChatRequest,
        model: Model,
        triton: Triton,
        headers: RequestHeaders,
        prompts: Sequence[str],
        prompt_tokens: int | None,
        limit: int,
    ) -> None:
        self._request = request
        self._model = model
        self._prompts = prompts
        self._prompt_tokens = prompt_tokens  # None: not counted yet
        self._chat = isinstance(request, ChatRequest)
        self._head: dict[str, Any] = {
            "id": f"{'chatcmpl' if self._chat else 'cmpl'}-{headers.name}",
            "object": "chat.completion" if self._chat else "text_completion",
            "created": int(time.time()),
            "model": model.name,
        }
        stops = [*request.stops, *(model.words.template.stops if self._chat else ())]
        self._echo = isinstance(request, CompletionRequest) and request.echo
        self._generations = [
            Generation(triton, model, prompt, limit, request, headers, place * request.n + choice, stops)
            for place, prompt in enumerate(prompts)
            for choice in range(request.n)
        ]

    @classmethod
    async def to(
        cls, request: CompletionRequest | ChatRequest, model: Model, triton: Triton, headers: RequestHeaders
    ) -> Answer:
        """The answer to a request. Raises ApiError: a prompt is longer than what the model sees."""
        if isinstance(request, ChatRequest):
            field = "messages"
            prompts = [model.words.template.render(request.messages)]
            limit = request.max_completion_tokens or request.max_tokens
        else:
            field = "prompt"
            prompts = request.prompts
            limit = request.max_tokens or COMPLETION_TOKENS
        prompt_tokens = None
        if not limit or max(map(len, prompts)) > PIECE:
            counts = [await model.words.count(prompt) for prompt in prompts]
            if model.words.context and (most := max(counts)) >= model.words.context:
                why = f"{field}: at least {most:,} tokens; the model sees {model.words.context:,}, the answer included"
                raise ApiError(400, why, field, "context_length_exceeded")
            prompt_tokens = sum(counts)
        limit = limit or model.room(prompt_tokens or 0, CHAT_TOKENS)
        return cls(request, model, triton, headers, prompts, prompt_tokens, limit)

    @property
    def tokens(self) -> int:
        return sum(generation.tokens for generation in self._generations)

    async def parts(self) -> AsyncGenerator[Part, None]:
        """The new texts of all choices as they come. Closing it cancels what is under way."""
        choices = [self._choice(index, generation) for index, generation in enumerate(self._generations)]
        async with contextlib.aclosing(choices[0] if len(choices) == 1 else merge_sources(choices)) as parts:
            async for part in parts:
                yield part

    async def _choice(self, index: int, generation: Generation) -> AsyncGenerator[Part, None]:
        if self._echo:
            yield Part(index, self._prompts[index // self._request.n], (), None)
        async with contextlib.aclosing(generation.pieces()) as pieces:
            async for text in pieces:
                yield Part(index, text, generation.scored, generation.finish_reason)

    async def whole(self) -> str:
        """The answer as one JSON object."""
        texts = [""] * len(self._generations)
        scored: list[list[ScoredToken]] = [[] for _ in texts]
        ends: list[Ends] = ["stop"] * len(texts)
        async with contextlib.aclosing(self.parts()) as parts:
            async for index, text, tokens, end in parts:
                texts[index] += text
                scored[index] += tokens
                ends[index] = end or ends[index]
        kind: type[BaseModel] = ChatCompletion if self._chat else Completion
        choices = [
            {"index": index, **self._text_fields(text), "logprobs": self._form(tokens), "finish_reason": end}
            for index, (text, tokens, end) in enumerate(zip(texts, scored, ends, strict=True))
        ]
        answer = kind.model_validate({**self._head, "choices": choices, "usage": await self._usage()})
        return answer.model_dump_json(exclude_unset=True)

    def _text_fields(self, text: str) -> dict[str, Any]:
        """The text's fields in a choice of a whole answer."""
        if self._chat:
            return {"message": {"role": "assistant", "content": text, "refusal": None}}
        return {"text": text}

    async def chunks(self) -> AsyncGenerator[tuple[bytes, bool], None]:
        """The answer as server-sent events: the events for each new text, and whether they are the last ones."""
        open_choices = len(self._generations)
        begun: set[int] = set()
        async with contextlib.aclosing(self.parts()) as parts:
            async for index, text, tokens, end in parts:
                events = b""
                if self._chat and index not in begun:
                    begun.add(index)
                    events = self._event(index, {"role": "assistant", "content": ""})
                if text or tokens:
                    events += self._event(index, {"content": text}, tokens)
                if end:
                    events += self._event(index, {"content": ""}, end=end)
                    open_choices -= 1
                if not open_choices:
                    if self._request.wants_usage:
                        events += self._chunk([], (await self._usage()).model_dump(exclude_unset=True))
                    events += b"data: [DONE]\n\n"
                if events:
                    yield events, not open_choices

    def _form(self, tokens: Sequence[ScoredToken]) -> dict[str, Any] | None:
        if not tokens:
            return None
        return chat_form(tokens) if self._chat else completion_form(tokens)

    def _event(self, index: int, delta: Any, tokens: Sequence[ScoredToken] = (), end: Ends | None = None) -> bytes:
        """One choice's chunk. ``delta`` is what a chat has new; a completion has its text alone."""
        new = {"delta": delta} if self._chat else {"text": delta["content"]}
        return self._chunk([{"index": index, **new, "logprobs": self._form(tokens), "finish_reason": end}])

    def _chunk(self, choices: list[Any], usage: Any = None) -> bytes:
        """A server-sent event. Made of plain values: of the API's types one takes four to ten times as long."""
        chunk = {**self._head, "choices": choices}
        if self._chat:
            chunk["object"] = "chat.completion.chunk"
        if self._request.wants_usage:
            chunk["usage"] = usage
        return b"data: " + JSON.dump_json(chunk) + b"\n\n"

    async def _usage(self) -> CompletionUsage:
        """Prompts that have not been counted yet are now, when the request has long been sent."""
        if self._prompt_tokens is None:
            self._prompt_tokens = sum([await self._model.words.count(prompt) for prompt in self._prompts])
        return CompletionUsage(
            prompt_tokens=self._prompt_tokens,
            completion_tokens=self.tokens,
            total_tokens=self._prompt_tokens + self.tokens,
        )


async def merge_sources(sources: Sequence[AsyncGenerator[Part, None]]) -> AsyncGenerator[Part, None]:
    """The items of several iterators in order of arrival; an iterator goes on when its last item was taken."""
    ready: asyncio.Queue[tuple[Part, asyncio.Event] | None] = asyncio.Queue()  # at most one part of each

    async def copy(source: AsyncGenerator[Part, None]) -> None:
        async with contextlib.aclosing(source) as parts:
            async for part in parts:
                taken = asyncio.Event()
                ready.put_nowait((part, taken))
                await taken.wait()

    async def copy_all() -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for source in sources:
                    group.create_task(copy(source))
        finally:
            ready.put_nowait(None)

    work = asyncio.create_task(copy_all())
    try:
        while waiting := await ready.get():
            part, taken = waiting
            yield part
            taken.set()
        await work
    except ExceptionGroup as group:
        raise group.exceptions[0] from None
    finally:
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
