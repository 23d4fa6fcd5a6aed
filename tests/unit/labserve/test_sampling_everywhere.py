"""What a field of sampling means is the same through every door, edge values included: which tokens can be drawn.

The expectation is a definition of its own: temperature 0, top_k 1 and top_p 0 leave the best token; top_k 0 and -1 and
top_p 1 leave all; else the top_k best, and of them the fewest whose probabilities reach top_p. A door may also refuse
a value, by its field's name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from door_models import text_model
from hypothesis import example, given, settings
from hypothesis import strategies as some

from labdoor import requests
from labdoor.errors import ApiError, of_triton
from labdoor.models import Model
from labdoor.vocabulary import Vocabulary
from labserve.codegen.request import parse_codegen_request as codegen
from labserve.inflight.parse import parse_generation as tensorrt_llm
from labserve.model_shape import ModelShape
from labserve.params import SAMPLING, BadInput
from labserve.params import parse_parameters as parameters
from labserve.text.sampling import Sampler

SCORES = np.log([0.02, 0.4, 0.08, 0.2, 0.3])
SHAPE = ModelShape(vocabulary=5, context=100, token_values=8, end_id=0)
EDGES: Mapping[str, list[Any]] = {
    "temperature": [0, -0.0, 1e-50, 1e-3, 1, 1 + 1e-12, 2, -1, None, 1e308, "1"],
    "top_p": [0, -0.0, 1e-50, 0.5, 0.75, 1 - 1e-12, 1, -1, 2, None, "0"],
    "top_k": [0, 1, -1, 2, 5, 6, 1000, 2**31 - 1, -2, 2**31, 2**64, None, 1.5],
    "seed": [0, 1, -1, 2**63 - 1, -(2**63), 2**63, None],
    "repetition_penalty": [1, None, 0, -1, 1e-50],
    "presence_penalty": [0, None, -0.0, -3],
    "frequency_penalty": [0, None, 3],
    "min_p": [0, 0.0, None, 0.5, -1],
    "n": [1, None, 0, -1, 2**31],
    "max_tokens": [1, None, 0, -1, 2**31],
    "logprobs": [None, 0, -1, 6],
}
FIELDS = some.fixed_dictionaries({}, optional={name: some.sampled_from(values) for name, values in EDGES.items()})


def support(temperature: float = 1.0, top_p: float = 1.0, top_k: int = 0) -> set[int]:
    """The tokens that may be drawn, by the definition."""
    if temperature < 1e-30 or top_p < 1e-30 or top_k == 1:
        return {int(SCORES.argmax())}
    best = [int(one) for one in np.argsort(-SCORES)][: top_k if top_k > 0 else None]
    weights = np.exp(np.longdouble(SCORES[best]) / np.longdouble(temperature))
    before = np.concatenate([[0.0], weights.cumsum()[:-1]]) / weights.sum()
    kept = [token for token, share in zip(best, before, strict=True) if share < top_p]
    return {token for token in kept if temperature > 0.01 or token == best[0]}


def drawn(sampler: Any) -> set[int]:
    """The tokens that a sampler does draw, over numbers that lie as close as the rarest token needs."""
    if sampler.temperature == 0:
        return {int(SCORES.argmax())}
    numbers = iter((np.arange(400) + 0.5) / 400)
    sampler._random = SimpleNamespace(random=lambda: next(numbers))
    return {sampler.draw(SCORES) for _ in range(400)}


def said(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def expected(fields: Mapping[str, Any]) -> set[int]:
    given = {name: value for name, value in said(fields).items() if name in ("temperature", "top_p", "top_k")}
    asks = {name: value for name, value in given.items() if name != "top_p" or np.float32(value) != 1}
    asks = {name: value for name, value in asks.items() if name != "top_k" or value not in (0, -1)}
    return support(**given) if asks or said(fields).get("seed") is not None else support(temperature=0)


def reads(tensors: Mapping[str, Any]) -> Callable[[str], Any]:
    fixed = {
        "input_ids": np.array([[1, 2]], dtype=np.int32),
        "input_lengths": np.array([[2]], dtype=np.int32),
        "request_output_len": np.array([[4]], dtype=np.uint32),
    }
    return {**fixed, **tensors}.get


def by_tensorrt_llm(tensors: Mapping[str, Any]) -> Any:
    found: Any = tensorrt_llm("r", reads(tensors), SHAPE).sampling
    return Sampler(found.temperature if found.sample else 0.0, found.top_k, found.top_p, found.seed)


@pytest.mark.parametrize(
    ("asked", "tokens"),
    [({}, {0, 1, 2, 3, 4}), ({"temperature": 0}, {1}), ({"top_p": 0.5}, {1, 4}), ({"top_k": 3}, {1, 3, 4})],
)
def test_the_definition_is_what_a_person_would_say(asked: dict[str, float], tokens: set[int]) -> None:
    assert support(**asked) == tokens  # type: ignore[arg-type]


def by_codegen(tensors: Mapping[str, Any]) -> Any:
    return codegen(reads(tensors), SHAPE)[0].sampler


TENSORS = {
    "temperature": ("temperature", np.float32),
    "top_p": ("runtime_top_p", np.float32),
    "top_k": ("runtime_top_k", np.uint32),
    "seed": ("random_seed", np.uint64),
    "repetition_penalty": ("repetition_penalty", np.float32),
    "presence_penalty": ("presence_penalty", np.float32),
}
ENGINES = {"tensorrt_llm": by_tensorrt_llm, "codegen": by_codegen}


def through_the_api(fields: Mapping[str, Any], engine: str) -> Any:
    """The sampler that a request of OpenAI's API has in a model. Raises ApiError."""
    asked = requests.parse_body(
        requests.CompletionRequest, json.dumps({"model": "m", "prompt": "x", **fields}).encode()
    )
    inputs_of = () if engine == "parameters" else TENSORS
    model = Model(text_model(*inputs_of, by_parameter=not inputs_of), Vocabulary())
    if asked.rivals is not None:
        asked = asked.model_copy(update={"logprobs": None})  # of which this is not about
    inputs, given = model.wire("x", 4, asked, 0)
    try:
        if engine == "parameters":
            texts = {name: value for name, value in given.items() if name in SAMPLING}
            return Sampler.of(parameters(json.dumps(texts), SAMPLING))
        kinds = {"FP32": np.float32, "UINT64": np.uint64}
        values = {one.name: np.frombuffer(one.content, kinds[one.datatype]) for one in inputs if one.name in TENSORS}
        return ENGINES[engine]({TENSORS[name][0]: value.astype(TENSORS[name][1]) for name, value in values.items()})
    except BadInput as error:
        raise of_triton(str(error), None) from None


@pytest.mark.parametrize("engine", ["parameters", *ENGINES])
@settings(max_examples=100)
@given(fields=FIELDS)
@example({"top_p": 0})
@example({"top_p": 0, "temperature": 2, "seed": 7})
@example({"top_p": 1e-50, "temperature": 1})
@example({"top_k": -1, "temperature": 1})
@example({"top_k": 0, "temperature": 1})
@example({"temperature": 1, "top_p": 1 - 1e-12})
@example({"top_k": -1})
@example({"top_p": 0.5})
@example({"min_p": 0, "temperature": 0})
def test_openais_api_draws_what_the_fields_mean_or_refuses_one_by_name(engine: str, fields: dict[str, Any]) -> None:
    try:
        sampler = through_the_api(fields, engine)
    except ApiError as error:
        assert error.status in (400, 422)
        assert error.param in said(fields), "only a field that was said is refused, and by its name"
        assert error.message.startswith(f"{error.param}: ")
    else:
        assert drawn(sampler) == expected(fields)


@settings(max_examples=100)
@given(fields=some.fixed_dictionaries({}, optional={name: some.sampled_from(EDGES[name]) for name in SAMPLING}))
def test_the_generate_endpoint_draws_what_the_parameters_mean_or_refuses_one_by_name(fields: dict[str, Any]) -> None:
    """Lab 02's models, whose fields are request parameters."""
    try:
        sampler = Sampler.of(parameters(json.dumps(fields), SAMPLING))
    except BadInput as error:
        assert error.name in fields
    else:
        asked: dict[str, Any] = {
            name: float(value) for name, value in fields.items() if name in ("temperature", "top_p")
        }
        asked |= {"top_k": int(fields["top_k"])} if "top_k" in fields else {}
        assert drawn(sampler) == (support(**asked) if fields else support(temperature=0))


@pytest.mark.parametrize("engine", ENGINES)
@settings(max_examples=100)
@given(
    temperature=some.sampled_from([0.0, 1e-3, 0.5, 1.0, 2.0, 100.0, 101.0, -1.0, float("nan"), float("inf")]),
    top_p=some.sampled_from([0.0, 0.5, 0.75, 1.0, 1.5, -1.0, float("nan")]),
    top_k=some.sampled_from([0, 1, 2, 5, 6, 2**31 - 1, 2**31, 2**32 - 1, -1]),
)
def test_tensors_draw_what_tensorrt_llm_means_or_one_is_refused_by_name(
    engine: str, temperature: float, top_p: float, top_k: int
) -> None:
    """There 0 is off for top_p and top_k, and a temperature of 1 alone is greedy."""
    kind = np.int32 if -1 <= top_k < 2**31 else np.uint32  # later releases have INT32
    tensors = {
        "temperature": np.array([[temperature]], dtype=np.float32),
        "runtime_top_p": np.array([[top_p]], dtype=np.float32),
        "runtime_top_k": np.array([[top_k]], dtype=kind),
    }
    try:
        sampler = ENGINES[engine](tensors)
    except BadInput as error:
        assert error.name in tensors
        return
    off = temperature == 1 and top_k == 0 and (top_p == 0 or (engine == "tensorrt_llm" and top_p == 1))
    assert drawn(sampler) == (support(temperature=0) if off else support(temperature, top_p or 1.0, top_k))
