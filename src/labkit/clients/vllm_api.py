"""vLLM as NVIDIA's backend serves it: ``vllm_model``, text in, text out, decoupled, without a batch dimension.

Upstream's model: vllm_backend r26.01, src/utils/request.py.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from labkit.clients.tensors import tensor, text_tensor

MODEL = "vllm_model"
PARAMETERS = "sampling_parameters"  # an optional input that no other model has
FLAGS = ("exclude_input_in_output", "return_finish_reason")


def inputs(prompt: str, tokens: int, stream: bool = False) -> list[Any]:
    """A request for ``tokens`` tokens, the most likely ones, which no end-of-text token cuts short.

    An answer comes without its prompt, and says why it ended.
    """
    sampling = json.dumps({"max_tokens": tokens, "ignore_eos": True, "temperature": 0.0})
    flags = [tensor(name, value, np.bool_) for name, value in (("stream", stream), *((name, True) for name in FLAGS))]
    for flag in flags:
        flag.set_shape([1])
    return [text_tensor("text_input", prompt, (1,)), text_tensor(PARAMETERS, sampling, (1,)), *flags]
