"""Token ids to a streaming ``tensorrt_llm``: each token of an answer has its time, each step its line in the log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from labkit.clients import trtllm
from labkit.clients.stream import TextStream
from labkit.clients.tensors import kind_of, tensor
from labkit.errors import LabError
from labkit.records import RequestRecord
from labkit.waiting import attempts
from labsched.steplog import StepRecord

BLOCK = 32  # tokens in a block of our engines' KV cache
POLL_S = 0.02
LOGGED_S = 60.0  # until the tokens that were answered are in the step log
LOGGED = ("openvino", "transformers", "vllm")  # engines whose steps are in a log


class StepSource(Protocol):
    """What is needed here of a phase: its settings, and the steps of a model while some requests were answered."""

    @property
    def settings(self) -> Mapping[str, Any]: ...

    def steps(self, model: str, records: Sequence[RequestRecord]) -> list[StepRecord]: ...


class EngineStream(TextStream):
    """One stream to the engine, over which requests arrive in the order in which they are sent."""

    def __init__(self, endpoint: str) -> None:
        super().__init__(endpoint)
        self._length = kind_of(endpoint, trtllm.MODEL, trtllm.OUTPUT_LENGTH)

    def ask(self, ids: Sequence[int], tokens: int, name: str = "", **more: Any) -> RequestRecord:
        """Send a prompt for exactly ``tokens`` tokens.

        ``more``: an id, a priority, or parameters of the request.
        """
        inputs = [
            tensor(trtllm.PROMPT, list(ids), np.int32),
            tensor(trtllm.PROMPT_LENGTH, len(ids), np.int32),
            tensor(trtllm.OUTPUT_LENGTH, tokens, self._length),
            tensor(trtllm.STREAMED, True, np.bool_),
        ]
        return self.send_inputs(trtllm.MODEL, name, inputs, trtllm.ANSWER, **more)

    def fill(self, tokens: int) -> RequestRecord:
        """Send a request that fills a KV cache of ``tokens`` tokens: no other request joins until it has ended."""
        return self.ask([1] * (tokens - BLOCK), BLOCK, "holds the door")


def steps_of(lab: StepSource, records: Sequence[RequestRecord]) -> list[StepRecord]:
    """The engine's steps since the first of ``records`` was sent, all of whose tokens are in them.

    A step's line is written after its tokens are sent, so the last one is waited for. An engine of NVIDIA's has no log:
    then there are no steps.

    Raises:
        LabError: the log does not come to have them.
    """
    if lab.settings["engine"] not in LOGGED:
        return []
    answered = {record.id: record.output_tokens for record in records}
    for _ in attempts(LOGGED_S, POLL_S):
        steps = lab.steps(trtllm.MODEL, records)
        logged = dict.fromkeys(answered, 0)
        for step in steps:
            for id, count in zip(step.ids, step.more["made"], strict=True):
                if id in logged:
                    logged[id] += count
        if all(logged[id] >= tokens for id, tokens in answered.items()):
            return steps
    raise LabError(
        f"the step log of {trtllm.MODEL} lacks tokens that were answered",
        f"within {LOGGED_S:g} s",
        code="step-log-incomplete",
    )
