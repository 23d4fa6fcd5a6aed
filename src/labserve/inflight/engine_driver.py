"""The driver of ``tensorrt_llm``: its requests are read from their tensors, and answered with tokens."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from labsched.log.lines import WORDS
from labsched.log.settings import SchedulerSettings
from labsched.policy import gather_s
from labsched.request import End
from labserve.driver import Answers, DriverThread, Stop
from labserve.guard import Guard
from labserve.inflight.engines import Setup
from labserve.inflight.parse import parse_generation, read_parameters
from labserve.inflight.setup import open_scheduler
from labserve.observe.recorder import Recorder, note_in_force
from labserve.params import read_single
from labserve.request import ServedRequest
from labserve.text.logprobs import LOGPROBS, join_token_texts
from labserve.text.prompts import find_tokenizer
from labserve.triton import decoupled, device, input_reader, model_parameters, send
from labserve.vllm.engine import VllmRequest, VllmScheduler

CONTEXT = 8  # ids before a new one that a detokenizer may need
FROM_ZERO = ("waiting", "kv_blocks_used", "admissions_total", "preemptions_total")  # metrics of every engine


def drive_tokens(args: dict[str, str], beside: Path) -> DriverThread:
    """The scheduler and the engine that a model's configuration asks for, with a driver that serves token ids.

    Args:
        args: those of Triton's `initialize`.
        beside: the folder of model.py, in which a ``scheduler.py`` may take the place of the shipped scheduler.
    """
    word, guard = model_parameters(args), Guard(args)
    setup = open_scheduler(word, device(args), beside)
    return DriverThread(
        guard,
        setup.scheduler,
        TokenAnswers(decoupled(args)),
        engine_recorder(args, setup),
        partial(read_request, setup=setup, guard=guard),
        gather_s(word),
        beside,
        forgiving=setup.own is not None,
    )


def read_request(source: Any, number: int, setup: Setup, guard: Guard) -> ServedRequest | Stop:
    """The scheduler's request of one of Triton's. Raises BadInput, which names the input at fault."""
    read, scheduler = input_reader(source), setup.scheduler
    if read_single(read, "stop", False):
        return Stop(source.request_id(), partial(send, source, token_response([], [], last=True), final=True))
    guard.check(source)
    vllm = isinstance(scheduler, VllmScheduler)
    id, kind = source.request_id() or f"#{number}", VllmRequest if vllm else ServedRequest
    request = parse_generation(id, read, setup.shape, kind)
    request.source, request.number = source, number
    request.tenant, request.priority, wanted, schema = read_parameters(source.parameters(), masks=vllm)
    if wanted is not None:
        request.scored = setup.log_probs.open(request, wanted)
    if isinstance(scheduler, VllmScheduler) and isinstance(request, VllmRequest):
        request.schema = schema
        scheduler.compile(request)
    return request


class TokenAnswers(Answers):
    """Answers a request whole, or token by token where it is `streaming` and the model `decoupled`."""

    def __init__(self, decoupled: bool) -> None:
        self.decoupled = decoupled

    def stream(self, request: ServedRequest, tokens: Sequence[int]) -> Sequence[Any]:
        """One response for each new token."""
        if not (self.decoupled and request.streaming):
            return ()
        ids, responses = request.ids[-CONTEXT - len(tokens) :], []
        scored = request.scored.of(tokens) if request.scored else [""] * len(tokens)
        for index, (token, log_probs) in enumerate(zip(tokens, scored, strict=True), len(ids) - len(tokens)):
            last = request.finished and index == len(ids) - 1
            responses.append(token_response([token], ids[max(0, index - CONTEXT) : index], last, log_probs))
        return responses

    def last(self, request: ServedRequest) -> Any:
        if request.end is End.CANCELLED:
            return token_response([], [], last=False)
        if self.decoupled and request.streaming:
            return token_response([], [], last=True)
        log_probs = join_token_texts(request.scored.of(request.output)) if request.scored else ""
        return token_response(request.ids, [], last=True, log_probs=log_probs)


def token_response(ids: Sequence[int], context: Sequence[int], last: bool, log_probs: str = "") -> Any:
    """A response with new tokens, and the tokens before them.

    A final response that is not the `last` of its answer tells the next model of an ensemble that the answer was cut.
    `log_probs` of the tokens are an output of their own, which is left out if they are empty.
    """
    tensors = [
        pb_utils.Tensor("output_ids", np.array([[ids]], dtype=np.int32)),
        pb_utils.Tensor("context_ids", np.array([context], dtype=np.int32)),
        pb_utils.Tensor("last", np.array([[last]])),
    ]
    if log_probs:
        tensors.append(pb_utils.Tensor(LOGPROBS, np.array([[log_probs.encode()]], dtype=object)))
    return pb_utils.InferenceResponse(tensors)


def engine_recorder(args: dict[str, str], setup: Setup) -> Recorder:
    """The recorder of an engine's steps; their log can be replayed. Says in the server's log what serves."""
    word, kv, features = model_parameters(args), setup.kv, setup.features
    note_in_force(word("run_dir"), setup.in_force)
    pb_utils.Logger.log_info(setup.described)
    settings = SchedulerSettings(
        {name: word(name) for name in WORDS},
        kv.blocks,
        kv.block_size,
        features.max_num_tokens,
        setup.shape.context,
        setup.shape.vocabulary,
        setup.own,
    )
    gauges = {"kv_blocks": kv.blocks, **dict.fromkeys(FROM_ZERO, 0)}
    tokenizer = partial(find_tokenizer, word("gpt_model_path"))
    return Recorder(args, setup.scheduler, tokenizer, gauges, features, settings)
