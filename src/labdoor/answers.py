"""Answers in the form of OpenAI's API: one object, or chunks of one.

They are plain values, and the tests read them as the types of the ``openai`` package. To import those takes 1.1 s of
the processor and 23 MB, more than all else of a start, and to make a chunk of one takes four to ten times as long.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncGenerator, Sequence
from typing import Any, Self

from labdoor.errors import ApiError
from labdoor.generation import Ends, Generation, Part, ScoredToken
from labdoor.models import Model
from labdoor.requests import JSON, ChatRequest, RequestHeaders, TextRequest
from labdoor.triton import Triton

CHAT_TOKENS = 256  # of a chat's answer, or what the context leaves, where a request does not say
DONE = b"data: [DONE]\n\n"


class Answer:
    """The answer to one request: its choices, each with a generation of its own."""

    @classmethod
    async def to(cls, request: TextRequest, model: Model, triton: Triton, headers: RequestHeaders) -> Self:
        """The answer to a request. Raises ApiError: the model cannot do it, or a prompt is longer than what it sees."""
        if isinstance(request, ChatRequest):
            field, prompts = "messages", [model.words.render(request.messages)]
        else:
            field, prompts = "prompt", request.prompt
        counts = [await model.words.count(prompt) or 0 for prompt in prompts]
        room = (model.words.context or math.inf) - max(counts)
        if room <= 0:
            most, seen = max(counts), model.words.context
            why = f"{field}: at least {most:,} tokens; the model sees {seen:,}, the answer included"
            raise ApiError(400, why, field, "context_length_exceeded")
        limit = request.limit or int(min(CHAT_TOKENS, room))
        return cls(request, model, triton, headers, prompts, sum(counts), limit)

    def __init__(
        self,
        request: TextRequest,
        model: Model,
        triton: Triton,
        headers: RequestHeaders,
        prompts: Sequence[str],
        prompt_tokens: int,
        limit: int,
    ) -> None:
        self._chat = isinstance(request, ChatRequest)
        self._wants_usage = request.wants_usage
        self._prompt_tokens = prompt_tokens
        self._head = {
            "id": f"{'chatcmpl' if self._chat else 'cmpl'}-{headers.name}",
            "object": "chat.completion" if self._chat else "text_completion",
            "created": int(time.time()),
            "model": model.name,
        }
        stops = [*request.stop, *(model.words.stops if self._chat else ())]
        self._generations = [
            Generation(triton, model, request, headers, prompt, limit, stops, place * request.n + choice)
            for place, prompt in enumerate(prompts)
            for choice in range(request.n)
        ]

    async def whole(self) -> AsyncGenerator[bytes, None]:
        """The answer as one JSON object. Closing it cancels what is under way."""
        texts = [""] * len(self._generations)
        scored: list[list[ScoredToken]] = [[] for _ in texts]
        async with contextlib.aclosing(merge_parts(self._generations)) as parts:
            async for index, part in parts:
                texts[index] += part.text
                scored[index] += part.tokens
        choices = []
        for index, (text, tokens) in enumerate(zip(texts, scored, strict=True)):
            message = {"role": "assistant", "content": text, "refusal": None}
            said = {"message": message} if self._chat else {"text": text}
            choices.append(self._choice(index, said, tokens, self._generations[index].end))
        yield JSON.dump_json({**self._head, "choices": choices, "usage": await self._usage()})

    async def events(self) -> AsyncGenerator[bytes, None]:
        """The answer as server-sent events: those of each new text at once. Closing it cancels what is under way."""
        running = len(self._generations)
        begun: set[int] = set()
        async with contextlib.aclosing(merge_parts(self._generations)) as parts:
            async for index, part in parts:
                new: list[dict[str, Any]] = []
                if self._chat and index not in begun:
                    begun.add(index)
                    new.append(self._choice(index, {"delta": {"role": "assistant", "content": ""}}))
                if part.text or part.tokens:
                    new.append(self._choice(index, self._delta(part.text), part.tokens))
                if part.end:
                    new.append(self._choice(index, self._delta(""), end=part.end))
                    running -= 1
                events = b"".join(self._chunk([choice]) for choice in new)
                if not running:
                    if self._wants_usage and (usage := await self._usage()):
                        events += self._chunk([], usage)
                    events += DONE
                if events:
                    yield events

    def _delta(self, text: str) -> dict[str, Any]:
        return {"delta": {"content": text}} if self._chat else {"text": text}

    def _choice(
        self, index: int, said: dict[str, Any], tokens: Sequence[ScoredToken] = (), end: Ends | None = None
    ) -> dict[str, Any]:
        scores = (chat_form if self._chat else completion_form)(tokens) if tokens else None
        return {"index": index, **said, "logprobs": scores, "finish_reason": end}

    def _chunk(self, choices: list[dict[str, Any]], usage: dict[str, int] | None = None) -> bytes:
        chunk: dict[str, Any] = {**self._head, "choices": choices}
        if self._chat:
            chunk["object"] = "chat.completion.chunk"
        if self._wants_usage:
            chunk["usage"] = usage
        return b"data: " + JSON.dump_json(chunk) + b"\n\n"

    async def _usage(self) -> dict[str, int] | None:
        """Its tokens; None: the model has no tokenizer to count them."""
        tokens = [await generation.tokens() for generation in self._generations]
        counted = [count for count in tokens if count is not None]
        if len(counted) < len(tokens):
            return None
        prompts, answer = self._prompt_tokens, sum(counted)
        return {"prompt_tokens": prompts, "completion_tokens": answer, "total_tokens": prompts + answer}


def completion_form(tokens: Sequence[ScoredToken]) -> dict[str, Any]:
    """Log probabilities as completions have them: lists of one length."""
    return {
        "text_offset": [token.start for token in tokens],
        "token_logprobs": [token.own[1] for token in tokens],
        "tokens": [token.own[0] for token in tokens],
        "top_logprobs": [dict([*token.rivals, token.own]) for token in tokens],
    }


def chat_form(tokens: Sequence[ScoredToken]) -> dict[str, Any]:
    """Log probabilities as chats have them: each token spelled in bytes."""

    def spelled(text: str, logprob: float) -> dict[str, Any]:
        return {"token": text, "logprob": logprob, "bytes": list(text.encode())}

    rivals = [[spelled(*rival) for rival in token.rivals] for token in tokens]
    return {"content": [spelled(*token.own) | {"top_logprobs": top} for token, top in zip(tokens, rivals, strict=True)]}


async def merge_parts(generations: Sequence[Generation]) -> AsyncGenerator[tuple[int, Part], None]:
    """The parts of all generations in order of arrival; one goes on when its last part was taken."""
    sources = [generation.parts() for generation in generations]
    if len(sources) == 1:
        async with contextlib.aclosing(sources[0]) as parts:
            async for part in parts:
                yield 0, part
        return
    next_of = {asyncio.ensure_future(anext(source)): index for index, source in enumerate(sources)}
    try:
        while next_of:
            done, _ = await asyncio.wait(next_of, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                index = next_of.pop(task)
                with contextlib.suppress(StopAsyncIteration):
                    yield index, task.result()
                    next_of[asyncio.ensure_future(anext(sources[index]))] = index
    finally:
        for task in next_of:
            task.cancel()
        for index in set(range(len(sources))) - {*next_of.values()}:
            await sources[index].aclose()
        await asyncio.gather(*next_of, return_exceptions=True)
