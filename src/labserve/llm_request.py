"""A request to ``tensorrt_llm`` as its tensors say it: checked, and every refusal names the input at fault."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from labserve.openvino_engine import Sampling, Shape
from labserve.params import BadInput

Read = Callable[[str], Any]  # the numpy array of an input, None where it was not sent


@dataclass(slots=True)
class Generation:
    """What is to be generated."""

    prompt: list[int]
    limit: int
    sampling: Sampling
    stop_words: list[list[int]]
    streaming: bool


def parse(read: Read, shape: Shape) -> Generation:
    """Raises BadInput."""
    prompt = _prompt(read, shape)
    limit = int(_one(read, "request_output_len", 0))
    if limit < 1:
        raise BadInput("request_output_len", f"{limit} is out of range; it must be at least 1")
    if len(prompt) + limit > shape.context:
        raise BadInput(
            "request_output_len",
            f"{limit:,} is too many: of {shape.context:,} tokens the prompt leaves {shape.context - len(prompt):,}",
        )
    if int(_one(read, "beam_width", 1)) > 1:
        raise BadInput("beam_width", "this engine has no beam search; it must be 1")
    if words(read("bad_words_list")):
        raise BadInput("bad_words_list", "this engine cannot forbid words (bad_words)")
    return Generation(
        prompt, limit, _sampling(read), words(read("stop_words_list")), bool(_one(read, "streaming", False))
    )


def _prompt(read: Read, shape: Shape) -> list[int]:
    ids = read("input_ids")
    if ids is None:
        raise BadInput("input_ids", "it is missing")
    ids = np.atleast_2d(ids)
    if ids.ndim != 2 or len(ids) != 1:
        raise BadInput("input_ids", f"one row per request, please; this one has shape {list(ids.shape)}")
    # Existing clients send lengths that disagree with the row: the shorter of both is meant.
    width = min(int(_one(read, "input_lengths", ids.shape[1])), ids.shape[1])
    if width < 1:
        raise BadInput("input_lengths", "the prompt is empty")
    if width >= shape.context:
        raise BadInput("input_ids", f"{width:,} tokens; the model sees {shape.context:,}, the answer included")
    prompt: list[int] = ids[0, :width].tolist()
    if min(prompt) < 0 or max(prompt) >= shape.vocabulary:
        raise BadInput("input_ids", f"ids must be from 0 to {shape.vocabulary - 1:,}")
    return prompt


def _sampling(read: Read) -> Sampling:
    """Greedy unless something says otherwise, as in TensorRT-LLM: top_k 1 is greedy, 0 is off, neutral is neutral."""
    temperature = _number(read, "temperature", 1.0, 0.0, 100.0)
    top_k = int(_one(read, "runtime_top_k", 0))
    top_p = _number(read, "runtime_top_p", 0.0, 0.0, 1.0)
    asked = top_k > 1 or 0.0 < top_p < 1.0 or temperature != 1.0
    end_id = read("end_id")
    _number(read, "len_penalty", 1.0, -math.inf, math.inf)  # of beams, of which there is one
    return Sampling(
        sample=asked and top_k != 1 and temperature > 0.0,
        temperature=temperature or 1.0,
        top_k=top_k,
        top_p=top_p or 1.0,
        repetition_penalty=_number(read, "repetition_penalty", 1.0, 1e-3, 1e3),
        presence_penalty=_number(read, "presence_penalty", 0.0, -2.0, 2.0),
        min_length=int(_one(read, "min_length", 0)),
        seed=int(_one(read, "random_seed", 0)),
        end_id=None if end_id is None else int(_one(read, "end_id", 0)),
    )


def words(tensor: Any) -> list[list[int]]:
    """Lists of ids out of a [2, n] tensor: the ids one after the other, and below them where each word ends."""
    if tensor is None or tensor.size == 0:
        return []
    ids, ends = tensor.reshape(2, -1).tolist()
    found, start = [], 0
    for end in ends:
        if end > start:
            found.append(ids[start:end])
            start = end
    return found


def _one(read: Read, name: str, default: Any) -> Any:
    value = read(name)
    if value is None:
        return default
    if value.size != 1:
        raise BadInput(name, f"one value, please; this has {value.size}")
    return value.reshape(-1)[0]


def _number(read: Read, name: str, default: float, least: float, most: float) -> float:
    value = float(_one(read, name, default))
    if not least <= value <= most:  # also catches NaN
        raise BadInput(name, f"{value:g} is out of range; it must be from {least:g} to {most:g}")
    return value
