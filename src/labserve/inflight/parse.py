"""A request to ``tensorrt_llm`` as its tensors say it: checked, and every refusal names the input at fault."""

import json
import math
from typing import Any, NamedTuple

import numpy as np

from labsched.request import DEFAULT_PRIORITY, MOST_PRIORITY, Sampling
from labserve import params
from labserve.model_shape import ModelShape
from labserve.params import BadInput, Read, read_number, read_single, read_word_lists
from labserve.request import ServedRequest
from labserve.text.logprobs import LOGPROBS, MOST

LONGEST_TENANT = 64
PRIORITY = params.RequestParameter(int, 1, MOST_PRIORITY)
RIVALS = params.RequestParameter(int, 0, MOST)


def parse_generation(
    id: str, read: Read, shape: ModelShape, kind: type[ServedRequest] = ServedRequest
) -> ServedRequest:
    """The request of this kind that the tensors ask for. Raises BadInput."""
    prompt = _prompt(read, shape)
    limit = int(read_single(read, "request_output_len", 0))
    if limit < 1:
        raise BadInput("request_output_len", f"{limit} is out of range; it must be at least 1")
    if len(prompt) + limit > shape.context:
        room = shape.context - len(prompt)
        words = f"{limit:,} is too many: of {shape.context:,} tokens the prompt leaves {room:,}"
        raise BadInput("request_output_len", words)
    if int(read_single(read, "beam_width", 1)) > 1:
        raise BadInput("beam_width", "this engine has no beam search; it must be 1")
    if read_word_lists(read("bad_words_list")):
        raise BadInput("bad_words_list", "this engine cannot forbid words (bad_words)")
    stop_words = read_word_lists(read("stop_words_list"))
    streaming = bool(read_single(read, "streaming", False))
    return kind(id, prompt, limit, _sampling(read), stop_words, streaming=streaming)


class TokenParameters(NamedTuple):
    """What a request's parameters ask for, which no tensor carries.

    Triton uses a request's own `priority` for the queue in front of a model, and does not pass it on to the model.
    """

    tenant: str | None
    priority: int
    rivals: int | None  # how many likely tokens it wants log probabilities of beside its own; None: of none at all
    schema: dict[str, Any] | None  # the JSON schema that its answer is to follow


def read_parameters(text: str, masks: bool) -> TokenParameters:
    """Read `tenant`, `request_priority`, `logprobs` and `structured_outputs`; others are ignored. Raises BadInput.

    Args:
        text: a request's `parameters()`: a JSON object, or "".
        masks: whether the engine can mask tokens.
    """
    given = json.loads(text) if text else {}
    tenant = given.get("tenant", "")
    if not isinstance(tenant, str) or len(tenant) > LONGEST_TENANT:
        raise BadInput("tenant", f"expected a text of at most {LONGEST_TENANT} characters")
    priority = params.read_value("request_priority", given.get("request_priority", DEFAULT_PRIORITY), PRIORITY)
    rivals = params.read_value(LOGPROBS, given[LOGPROBS], RIVALS) if LOGPROBS in given else None
    structured = given.get(params.STRUCTURED)
    if structured is not None and not masks:
        raise BadInput(params.STRUCTURED, "this engine cannot mask tokens; engine=vllm can")
    schema = None if structured is None else params.json_schema(structured)
    return TokenParameters(tenant or None, priority, rivals, schema)


def _prompt(read: Read, shape: ModelShape) -> list[int]:
    ids = read("input_ids")
    if ids is None:
        raise BadInput("input_ids", "it is missing")
    ids = np.atleast_2d(ids)
    if ids.ndim != 2 or len(ids) != 1:
        raise BadInput("input_ids", f"one row per request, please; this one has shape {list(ids.shape)}")
    # Existing clients send lengths that disagree with the row: the shorter of both is meant.
    width = min(int(read_single(read, "input_lengths", ids.shape[1])), ids.shape[1])
    if width < 1:
        raise BadInput("input_lengths", "the prompt is empty")
    if width >= shape.context:
        raise BadInput("input_ids", f"{width:,} tokens; the model sees {shape.context:,}, the answer included")
    prompt: list[int] = ids[0, :width].tolist()
    if min(prompt) < 0 or max(prompt) >= shape.vocabulary:
        raise BadInput("input_ids", f"ids must be from 0 to {shape.vocabulary - 1:,}")
    return prompt


def _sampling(read: Read) -> Sampling:
    """Greedy unless something says otherwise, as in TensorRT-LLM: top_k 1 is greedy, top_k and top_p 0 are off."""
    temperature = read_number(read, "temperature", 1.0, 0.0, 100.0)
    top_k = int(read_number(read, "runtime_top_k", 0, 0, 2**31 - 1))
    top_p = read_number(read, "runtime_top_p", 0.0, 0.0, 1.0)
    chosen = top_k > 1 or 0.0 < top_p < 1.0 or temperature != 1.0
    end_id = read_single(read, "end_id", None)
    read_number(read, "len_penalty", 1.0, -math.inf, math.inf)  # for beam search; there is one beam
    return Sampling(
        sample=chosen and top_k != 1 and temperature > 0.0,
        temperature=temperature or 1.0,
        top_k=top_k,
        top_p=top_p or 1.0,
        repetition_penalty=read_number(read, "repetition_penalty", 1.0, 1e-3, 1e3),
        presence_penalty=read_number(read, "presence_penalty", 0.0, -2.0, 2.0),
        min_length=int(read_number(read, "min_length", 0, 0, 2**31 - 1)),
        seed=int(read_single(read, "random_seed", 0)),
        end_id=None if end_id is None else int(end_id),
    )
