"""Text requests to ``vllm_model``: the tensors of NVIDIA's vllm_backend (there in src/utils/request.py)."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from labserve.driver import Answers, DriverThread
from labserve.guard import Guard
from labserve.inflight.engine_driver import engine_recorder
from labserve.inflight.engines import Setup
from labserve.params import STRUCTURED, BadInput, Read, read_single, text
from labserve.triton import input_reader
from labserve.vllm.engine import VllmTextRequest, client_errors

LONGEST = 2**20  # bytes of a prompt
MORE = ("finish_reason", "cumulative_logprob", "logprobs", "num_input_tokens", "num_output_tokens")  # if return_NAME


def drive_text(args: dict[str, str], setup: Setup) -> DriverThread:
    """A driver that serves text. `args` are those of Triton's `initialize`."""
    guard, encode = Guard(args), setup.scheduler.engine.get_tokenizer().encode

    def read(source: Any, number: int) -> VllmTextRequest:
        """The scheduler's request of Triton's. Raises BadInput, which names the input at fault."""
        guard.check(source)
        request = read_text_request(source, encode)
        request.number = number
        request.id = request.name = source.request_id() or f"#{number}"
        setup.scheduler.compile(request)
        return request

    recorder = engine_recorder(args, setup)
    return DriverThread(guard, setup.scheduler, TextAnswers(), recorder, read, forgiving=setup.own is not None)


def read_text_request(source: Any, encode: Callable[[str], list[int]]) -> VllmTextRequest:
    """The request of text in one of Triton's. Raises BadInput, which names the input at fault."""
    read = input_reader(source)
    prompt = text(read_single(read, "text_input", b""), "text_input", LONGEST)
    for name in ("image", "embedding_request"):
        if read(name) is not None:
            raise BadInput(name, "this model takes text, and answers with text")
    params = sampling(json_of(read, source))
    stream = bool(read_single(read, "stream", False))
    exclude = bool(read_single(read, "exclude_input_in_output", stream))
    if stream and not exclude:
        raise BadInput("exclude_input_in_output", "it must be true when streaming")
    request = VllmTextRequest("", encode(prompt), 0, params, source=source, streaming=stream)
    request.prefix = "" if exclude else prompt
    request.more = [name for name in MORE if read_single(read, f"return_{name}", False)]
    return request


class TextAnswers(Answers):
    """Answers with text: each step's piece, or all of it."""

    def stream(self, request: VllmTextRequest, tokens: Sequence[int]) -> Sequence[Any]:
        return [response(request)] if request.streaming else ()

    def last(self, request: VllmTextRequest) -> Any:
        return response(request)


def json_of(read: Read, source: Any) -> dict[str, Any]:
    """The sampling parameters: of the tensor, else of the request itself. Raises BadInput."""
    given = read_single(read, "sampling_parameters", None)
    try:
        parameters = json.loads(given if given is not None else source.parameters() or "{}")
    except (ValueError, RecursionError):
        raise BadInput("sampling_parameters", "it is not JSON") from None
    if not isinstance(parameters, dict):
        raise BadInput("sampling_parameters", f"expected an object, got {type(parameters).__name__}")
    return parameters


def sampling(given: Mapping[str, Any]) -> Any:
    """vLLM's `SamplingParams` by name. Raises BadInput for a name that it does not have, or a value out of range."""
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    if given.get("lora_name") is not None:
        raise BadInput("lora_name", "this model has no LoRA adapters")
    known = SamplingParams.__annotations__
    values = {}
    for name, value in given.items():
        if name not in known or name.startswith("_"):
            raise BadInput(name, "unknown parameter; see vLLM's SamplingParams")
        kind = _kind(known[name])
        try:
            values[name] = kind(value) if kind and isinstance(value, str) else value
        except ValueError:
            raise BadInput(name, f"expected {kind.__name__ if kind else 'another type'}, got {value!r}") from None
    if (structured := values.get(STRUCTURED)) is not None:
        try:
            fields = json.loads(structured) if isinstance(structured, str) else structured
            values[STRUCTURED] = StructuredOutputsParams(**fields)
        except client_errors(TypeError, RecursionError) as error:
            raise BadInput(STRUCTURED, str(error)) from error
    if values.get("n") not in (None, 1):
        raise BadInput("n", "one answer for each request, please")
    try:
        return SamplingParams(**values)
    except client_errors(TypeError) as error:
        raise BadInput("sampling_parameters", str(error)) from error


def _kind(annotation: Any) -> Any:
    """The plain type of a parameter (`float`, `int | None`); None for another."""
    return next((kind for kind in (int, float, bool) if annotation in (kind, kind | None)), None)


def response(request: VllmTextRequest) -> Any:
    """A response with the text since the last one, and the other outputs that were asked for."""
    answer = request.latest.outputs[0]
    piece = answer.text[request.sent :]
    if not request.sent and not request.streaming:
        piece = request.prefix + piece
    tensors = [_text("text_output", piece)]
    for name in request.more:
        tensors.append(_more(name, request, answer))
    request.sent, request.sent_tokens = len(answer.text), len(answer.token_ids)
    return pb_utils.InferenceResponse(tensors)


def _more(name: str, request: VllmTextRequest, answer: Any) -> Any:
    if name == "finish_reason":
        return _text(name, str(answer.finish_reason))
    if name == "cumulative_logprob":
        return pb_utils.Tensor(name, np.array([answer.cumulative_logprob or 0.0], dtype=np.float32))
    if name == "logprobs":
        new = (answer.logprobs or [])[request.sent_logprobs :]
        request.sent_logprobs += len(new)
        if answer.logprobs is None:
            return _text(name, "null")
        tokens = [{id: _logprob(value) for id, value in by_id.items()} for by_id in new]
        return _text(name, json.dumps(tokens))
    if name == "num_input_tokens":
        return pb_utils.Tensor(name, np.array([len(request.latest.prompt_token_ids)], dtype=np.uint32))
    return pb_utils.Tensor(name, np.array([len(answer.token_ids) - request.sent_tokens], dtype=np.uint32))


def _logprob(value: Any) -> dict[str, Any]:
    return {"logprob": value.logprob, "rank": value.rank, "decoded_token": value.decoded_token}


def _text(name: str, value: str) -> Any:
    return pb_utils.Tensor(name, np.array([value.encode()], dtype=object))
