"""TensorRT-LLM's LLM API as Triton serves it: text in, text out, without a batch dimension and without token ids.

Upstream's model: tensorrtllm_backend v0.19.0, all_models/llmapi/tensorrt_llm; later TensorRT-LLM, triton_backend.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from labkit.clients.tensors import tensor, text_tensor
from labkit.errors import LabError
from labkit.records import RequestRecord

MODEL = "tensorrt_llm"
# Unless it is asked otherwise, an answer begins with its prompt (helpers.py, get_sampling_params_from_request).
EXCLUDE_PROMPT = "sampling_param_exclude_input_from_output"
TELL_END = "return_finish_reason"


def inputs(prompt: str, tokens: int, stream: bool = False) -> list[Any]:
    """A request for an answer without its prompt, and for the reason why it ended."""
    tensors = [
        tensor("sampling_param_max_tokens", tokens, np.int32),
        tensor(EXCLUDE_PROMPT, True, np.bool_),
        tensor(TELL_END, True, np.bool_),
        tensor("streaming", stream, np.bool_),
    ]
    for item in tensors:
        item.set_shape([1])
    return [text_tensor("text_input", prompt, (1,)), *tensors]


def set_token_count(record: RequestRecord, asked: int, count: Callable[[str], int]) -> None:
    """Set how many tokens a whole answer has: all that were asked for, or as many as its text where it ended early.

    Raises:
        LabError: it ended for neither of these reasons.
    """
    if record.finish_reason == "length":
        record.tokens = asked
    elif record.finish_reason == "stop":
        record.tokens = max(1, count(record.text))
    else:
        raise LabError(
            f"{record.label} ended with finish_reason '{record.finish_reason}'",
            "neither length nor stop",
            code="finish-reason-unknown",
        )
