"""Triton's answers as OpenAI's API has them: one object, or chunks."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from openai.types import Completion, CompletionChoice, CompletionUsage
from openai.types.chat import ChatCompletion, ChatCompletionMessage
from openai.types.chat.chat_completion import Choice, ChoiceLogprobs
from openai.types.completion_choice import Logprobs

from labdoor.logprobs import Scored, chat_form, completion_form
from labdoor.models import Model
from labdoor.requests import JSON, Asked, ChatRequest, CompletionRequest
from labdoor.triton import Ends, Generation, Standing, Triton

TAIL = b',"logprobs":%b,"finish_reason":%b}]}\n\n'
PLAIN = TAIL % (b"null", b"null")
COMPLETION_TOKENS, CHAT_TOKENS = 16, 256  # where a request does not say; the first is OpenAI's
# The choice, its new text and the log probabilities of its tokens, and why it ended where it has.
Part = tuple[int, str, Sequence[Scored], Ends | None]


class Answer:
    """What becomes of one request: its choices, each with a generation of its own."""

    def __init__(
        self, asked: CompletionRequest | ChatRequest, model: Model, triton: Triton, standing: Standing
    ) -> None:
        self._asked, self._model = asked, model
        self._chat = isinstance(asked, ChatRequest)
        self._created = int(time.time())
        self._frames: dict[int, bytes] = {}  # with which each choice's events begin
        self._id = f"{'chatcmpl' if self._chat else 'cmpl'}-{standing.id}"
        stops = list(asked.stops)
        if isinstance(asked, ChatRequest):
            prompts = [model.words.template.render(asked.messages)]
            stops += model.words.template.stops
        else:
            prompts = asked.prompts
        self._echo = prompts if isinstance(asked, CompletionRequest) and asked.echo else []
        self._prompts = prompts
        limit = self._limit(asked)
        self._generations = [
            Generation(triton, model, prompt, limit, asked, standing, place * asked.n + choice, stops)
            for place, prompt in enumerate(prompts)
            for choice in range(asked.n)
        ]

    @functools.cached_property
    def _prompt_tokens(self) -> int:
        """Counted where it is needed, after the request has been sent if it can be."""
        return sum(map(self._model.words.count, self._prompts))

    def _limit(self, asked: Asked) -> int:
        said = (asked.max_completion_tokens if isinstance(asked, ChatRequest) else None) or asked.max_tokens
        if said:
            return said
        return self._model.room(self._prompt_tokens, CHAT_TOKENS) if self._chat else COMPLETION_TOKENS

    @property
    def tokens(self) -> int:
        return sum(one.tokens for one in self._generations)

    async def parts(self) -> AsyncGenerator[Part, None]:
        """The new texts of all choices as they come. Closing it cancels what is under way."""
        every = [self._choice(index, one) for index, one in enumerate(self._generations)]
        async with contextlib.aclosing(every[0] if len(every) == 1 else merged(every)) as parts:
            async for part in parts:
                yield part

    async def _choice(self, index: int, generation: Generation) -> AsyncGenerator[Part, None]:
        if self._echo:
            yield index, self._echo[index // self._asked.n], (), None
        async with contextlib.aclosing(generation.pieces()) as pieces:
            async for text in pieces:
                yield index, text, generation.scored, generation.finish_reason

    async def whole(self) -> str:
        """The answer as one JSON object."""
        texts = [""] * len(self._generations)
        scored: list[list[Scored]] = [[] for _ in texts]
        ends: list[Ends] = ["stop"] * len(texts)
        async with contextlib.aclosing(self.parts()) as parts:
            async for index, text, tokens, end in parts:
                texts[index] += text
                scored[index] += tokens
                ends[index] = end or ends[index]
        rows = list(enumerate(zip(texts, ends, strict=True)))
        shared: dict[str, Any] = {"id": self._id, "created": self._created, "model": self._model.name}
        made: Completion | ChatCompletion
        if self._chat:
            made = ChatCompletion(
                **shared,
                object="chat.completion",
                usage=self._usage(),
                choices=[
                    Choice(
                        index=index,
                        finish_reason=end,
                        logprobs=ChoiceLogprobs.model_validate(said) if (said := self._form(scored[index])) else None,
                        message=ChatCompletionMessage(role="assistant", content=text, refusal=None),
                    )
                    for index, (text, end) in rows
                ],
            )
        else:
            made = Completion(
                **shared,
                object="text_completion",
                usage=self._usage(),
                choices=[
                    CompletionChoice(
                        index=index,
                        finish_reason=end,
                        logprobs=Logprobs.model_validate(said) if (said := self._form(scored[index])) else None,
                        text=text,
                    )
                    for index, (text, end) in rows
                ],
            )
        return made.model_dump_json(exclude_unset=True)

    async def chunks(self) -> AsyncGenerator[tuple[bytes, bool], None]:
        """The answer as server-sent events: those that a new text makes, and whether they are the last ones."""
        open_choices, begun = len(self._generations), set[int]()
        async with contextlib.aclosing(self.parts()) as parts:
            async for index, text, tokens, end in parts:
                events = b""
                if self._chat and index not in begun:
                    begun.add(index)
                    events = self._event(index, b'{"role":"assistant","content":""}')
                if text or tokens:
                    events += self._event(index, JSON.dump_json(text), tokens)
                if end:
                    events += self._event(index, b'""', end=end)
                    open_choices -= 1
                if not open_choices:
                    events += self._usage_event() + b"data: [DONE]\n\n"
                if events:
                    yield events, not open_choices

    def _form(self, tokens: Sequence[Scored]) -> dict[str, Any] | None:
        if not tokens:
            return None
        return chat_form(tokens) if self._chat else completion_form(tokens)

    def _event(self, index: int, text: bytes, tokens: Sequence[Scored] = (), end: Ends | None = None) -> bytes:
        """One chunk. Its constant parts are made once: to make all of it by the API's types takes 0.1 ms.

        Args:
            text: as JSON; in a chat an object is the whole delta.
        """
        if index not in self._frames:
            head = JSON.dump_json(self._head())[:-1] + b',"choices":[{"index":%d,' % index
            self._frames[index] = b"data: " + head + (b'"delta":' if self._chat else b'"text":')
        if self._chat and not text.startswith(b"{"):
            text = b'{"content":' + text + b"}"
        if not tokens and not end:
            return self._frames[index] + text + PLAIN
        return self._frames[index] + text + TAIL % (JSON.dump_json(self._form(tokens)), JSON.dump_json(end))

    def _usage_event(self) -> bytes:
        """The chunk that has the usage; empty where it is not wanted."""
        if not self._asked.wants_usage:
            return b""
        usage = self._usage().model_dump(exclude_unset=True)
        return b"data: " + JSON.dump_json(self._head() | {"choices": [], "usage": usage}) + b"\n\n"

    def _head(self) -> dict[str, Any]:
        kind = "chat.completion.chunk" if self._chat else "text_completion"
        head: dict[str, Any] = {"id": self._id, "object": kind, "created": self._created, "model": self._model.name}
        return head | ({"usage": None} if self._asked.wants_usage else {})

    def _usage(self) -> CompletionUsage:
        return CompletionUsage(
            prompt_tokens=self._prompt_tokens,
            completion_tokens=self.tokens,
            total_tokens=self._prompt_tokens + self.tokens,
        )


async def merged(sources: Sequence[AsyncGenerator[Part, None]]) -> AsyncGenerator[Part, None]:
    """What several iterators give, in the order in which it comes; each goes on when its last part was taken."""
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
        while found := await ready.get():
            yield found[0]
            found[1].set()
        await work
    except ExceptionGroup as group:
        raise group.exceptions[0] from None
    finally:
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
