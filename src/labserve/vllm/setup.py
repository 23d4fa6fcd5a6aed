"""vLLM's engine, made from the words of ``tensorrt_llm/config.pbtxt``."""

import json
import locale
import os
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from labsched import scheduler
from labsched.own import FILE, class_beside
from labsched.policy import BATCHING
from labsched.vllm.gate import Gate
from labserve.inflight.engines import Setup
from labserve.inflight.logprobs import LogProbs
from labserve.model_shape import ModelShape
from labserve.processor import threads_of
from labserve.vllm.engine import VllmScheduler
from labserve.vllm.grammars import backend_config
from labserve.vllm.guide import Guide, guide_beside
from labserve.vllm.settings import COMPILED, VllmSettings, Word
from labserve.vllm.watched import watched_name

ARGUMENTS = "vllm.json"
NO_COMPILER = "TORCH_COMPILE_DISABLE"
SHARED = ("psm_", "vllm_dist_")  # names in /dev/shm: of Python's multiprocessing, and of vLLM's sums on a CPU
IN_FLIGHT = 2  # steps at most: one is computed, and one is decided
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine's core in this process, where we call its steps
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # clients and Triton need the processors too
    NO_COMPILER: "1",  # vLLM compiles its counting of ranks (logprobs), which needs a C++ compiler
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",  # not installed; greedy requests do not need it
    "VLLM_HOST_IP": "127.0.0.1",  # one process: no other has to reach it
    "GLOO_SOCKET_IFNAME": "lo",
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",  # of ranks: a fork of Triton's stub would have its locks and its CUDA
}


def set_up_vllm(word: Callable[[str], str], device: str, beside: Path | None = None) -> Setup:
    """Load the engine and warm it up.

    Args:
        word: a parameter of the model's config.pbtxt, "" if there is none.
        device: "cpu" or "cuda:N".
        beside: a folder that may have a ``scheduler.py`` with a subclass of vLLM's `Scheduler`, and engine arguments
            in ``vllm.json`` that override the arguments from config.pbtxt.

    Raises:
        ValueError: vLLM is not installed, or cannot do what is asked of it.
    """
    shape = ModelShape.of(word("gpt_model_path"))
    settings = VllmSettings.of(word, shape, device)
    if device != "cpu":
        _require_gpu()
    static = BATCHING[word("gpt_model_type") or "inflight_batching"]
    own = arguments_beside(beside)
    threads = threads_of(int(word("threads") or 0), word("gpt_model_path"))
    try:
        engine = open_vllm_engine(
            settings.arguments | own, threads, beside, static, compiled=word("execution") == COMPILED
        )
    except (TypeError, ValueError) as error:
        if not own:
            raise
        raise ValueError(f"{ARGUMENTS}: {error}") from error
    if own:
        settings = VllmSettings.of_engine(settings.arguments | own, engine.vllm_config)
    files = [name for name in (FILE, ARGUMENTS) if beside and (beside / name).exists()]
    guide = guide_beside(beside, settings)
    guided = VllmScheduler(engine, settings, static, guide)
    return _setup(word, shape, settings, guided, ", ".join(files) or None, guide)


def _setup(
    word: Word,
    shape: ModelShape,
    settings: VllmSettings,
    scheduler: VllmScheduler,
    own: str | None = None,
    guide: Guide | None = None,
) -> Setup:
    import vllm

    kv = settings.kv
    in_force = settings.in_force(word, scheduler.engine.vllm_config) + (guide.in_force() if guide else [])
    described = (
        f"vLLM {vllm.__version__}: at most {settings.max_running} sequences, {kv.blocks:,} KV blocks of "
        f"{kv.block_size} tokens"
    )
    return Setup(scheduler, shape, kv, settings.features, LogProbs(word), in_force, described, own)


def _require_gpu() -> None:
    """Raises ValueError if there is none: vLLM says "Device string must not be empty"."""
    import torch

    if not torch.cuda.is_available():
        raise ValueError("there is no NVIDIA GPU for vLLM: PyTorch finds none (driver, NVIDIA Container Toolkit)")


def arguments_beside(folder: Path | None) -> dict[str, Any]:
    """The engine arguments in ``folder/vllm.json``; {} if there is no such file. Raises ValueError."""
    if folder is None or not (folder / ARGUMENTS).exists():
        return {}
    try:
        arguments = json.loads((folder / ARGUMENTS).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{ARGUMENTS}: {error}") from error
    if not isinstance(arguments, dict):
        raise ValueError(f'{ARGUMENTS}: it holds an object, such as {{"max_num_seqs": 8}}')
    return arguments


def set_up_arguments(arguments: dict[str, Any], word: Word) -> Setup:
    """The same from vLLM's own engine arguments, such as upstream's model.json holds.

    What a step of the clock needs is set: the engine computes in this process, one step at a time.

    Raises:
        ValueError: vLLM does not know an argument, or cannot do what is asked of it.
    """
    folder = str(arguments["model"])
    given = {"enforce_eager": True, "disable_log_stats": True, **arguments, "async_scheduling": False}
    try:
        engine = open_vllm_engine(given, threads_of(int(word("threads") or 0), folder))
    except TypeError as error:
        raise ValueError(f"model.json: {error}") from error
    settings = VllmSettings.of_engine(given, engine.vllm_config)
    return _setup(word, ModelShape.of(folder), settings, VllmScheduler(engine, settings))


def open_vllm_engine(
    arguments: dict[str, Any], threads: int, beside: Path | None = None, static: bool = False, compiled: bool = False
) -> Any:
    """A `vllm.LLMEngine` in this process, whose scheduler is watched: vLLM's own, or the subclass `beside`."""
    locale.setlocale(locale.LC_ALL, "C.UTF-8")  # Triton's stub says ASCII, and PyTorch reads files as text
    for name, value in ENVIRONMENT.items():
        if not (compiled and name == NO_COMPILER):
            os.environ.setdefault(name, value)
    import torch
    from vllm import EngineArgs, LLMEngine
    from vllm.config import StructuredOutputsConfig
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler

    ahead = bool(arguments.get("async_scheduling"))
    usual = AsyncScheduler if ahead else Scheduler
    kind = class_beside(beside, usual, scheduler.Scheduler)
    if issubclass(kind, scheduler.Scheduler):  # of the labs' kind: it guides vLLM's, see guide.py
        kind = usual
    structured = backend_config(arguments.get("structured_outputs_config") or {})
    arguments = {**arguments, "structured_outputs_config": StructuredOutputsConfig(**structured)}  # it takes an object
    gate = Gate(int(arguments["max_num_seqs"])) if static else None
    engine = LLMEngine.from_engine_args(EngineArgs(**arguments, scheduler_cls=watched_name(kind, gate)))
    core = engine.engine_core.engine_core
    core.model_executor.register_failure_callback(_a_rank_has_ended)
    hide_shared_memory(core.model_executor)
    # A schema is compiled when its request comes, not beside the steps: a request never waits for that in the queue.
    core.structured_output_manager._use_async_grammar_compilation = False
    if ahead and core.batch_queue is None:  # vLLM for CPUs leaves it out, where it gains no time: but it can be watched
        core.batch_queue_size, core.batch_queue = IN_FLIGHT, deque(maxlen=IN_FLIGHT)
        core.step_fn = core.step_with_batch_queue
        engine.vllm_config.scheduler_config.async_scheduling = core.async_scheduling = True
    torch.set_num_threads(threads)
    return engine


def _a_rank_has_ended() -> None:
    from labserve.driver import end_dead_server  # it needs Triton's module, and an engine alone has none

    end_dead_server("a process of vLLM's ranks has ended")


def hide_shared_memory(executor: Any) -> None:
    """Remove the names of the memory that vLLM's ranks share, which all of them have opened by now.

    Nothing is left of it then, however they end: by SIGKILL too, which a busy machine's `down` may need.
    """
    for worker in getattr(executor, "workers", ()):
        for line in Path(f"/proc/{worker.proc.pid}/maps").read_text(encoding="utf-8").splitlines():
            if (path := Path(line.split(maxsplit=5)[-1])).name.startswith(SHARED):
                path.unlink(missing_ok=True)
