"""Token ids to a streaming ``tensorrt_llm``: each token of an answer has its time, each step its line in the log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from labkit.client.ask import TextStream, kind_of, tensor
from labkit.client.context import Context
from labkit.errors import LabError
from labkit.evidence.records import RequestRecord
from labkit.waiting import attempts
from labsched.step import Step

# The name and tensors of the engine's model, by upstream's names; the same in every release.
MODEL = "tensorrt_llm"
PROMPT, PROMPT_LENGTH, OUTPUT_LENGTH = "input_ids", "input_lengths", "request_output_len"
ANSWER = "output_ids"
STREAMED = "streaming"  # the answer token by token, where the model is decoupled
BLOCK = 32  # tokens in a block of our engines' KV cache
POLL_S = 0.02
LOGGED_S = 60.0  # until the tokens that were answered are in the step log
LOGGED = ("openvino", "transformers", "vllm")  # engines whose steps are in a log


class EngineStream(TextStream):
    """One stream to the engine, over which requests arrive in the order in which they are sent."""

    def __init__(self, endpoint: str) -> None:
        super().__init__(endpoint)
        self._length = kind_of(endpoint, MODEL, OUTPUT_LENGTH)

    def ask(self, ids: Sequence[int], tokens: int, name: str = "", **more: Any) -> RequestRecord:
        """Send a prompt for exactly ``tokens`` tokens.

        ``more``: an id, a priority, or parameters of the request.
        """
        inputs = [
            tensor(PROMPT, list(ids), np.int32),
            tensor(PROMPT_LENGTH, len(ids), np.int32),
            tensor(OUTPUT_LENGTH, tokens, self._length),
            tensor(STREAMED, True, np.bool_),
        ]
        return self.send_inputs(MODEL, name, inputs, ANSWER, **more)


def steps_of(lab: Context, records: Sequence[RequestRecord]) -> list[Step]:
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
        steps = lab.steps(MODEL, records)
        logged = dict.fromkeys(answered, 0)
        for step in steps:
            for id, count in zip(step.ids, step.made, strict=True):
                if id in logged:
                    logged[id] += count
        if all(logged[id] >= tokens for id, tokens in answered.items()):
            return steps
    raise LabError(
        f"the step log of {MODEL} lacks tokens that were answered", f"within {LOGGED_S:g} s", code="step-log-incomplete"
    )
