"""The driver of a model with an engine: ``tensorrt_llm``, and in its way ``vllm_model`` (labserve/vllm/text.py)."""

from functools import partial
from pathlib import Path

import triton_python_backend_utils as pb_utils

from labsched.policy import gather_s
from labsched.recording import SchedulerSettings
from labsched.request_log import WORDS
from labserve.driver import DriverThread
from labserve.guard import Guard
from labserve.inflight.setup import AnySetup, open_scheduler
from labserve.inflight.tokens import TokenAnswers, TokenReader
from labserve.observe import effective
from labserve.observe.recorder import Recorder
from labserve.observe.texts import find_tokenizer
from labserve.triton import decoupled, device, model_parameters

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
        TokenAnswers(guard, decoupled(args)),
        engine_recorder(args, setup),
        TokenReader(setup, guard).read,
        gather_s(word),
        beside,
        forgiving=bool(setup.own),
    )


def engine_recorder(args: dict[str, str], setup: AnySetup) -> Recorder:
    """The recorder of an engine's steps; their log can be replayed. Says in the server's log what serves."""
    word, kv, features = model_parameters(args), setup.kv, setup.features
    effective.note(word("run_dir"), setup.in_force(word))
    pb_utils.Logger.log_info(setup.describe(word))
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
