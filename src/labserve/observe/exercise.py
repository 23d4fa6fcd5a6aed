"""A learner's model, observed: what it does with its requests is counted around it, and not by the learner's own lines.

Triton loads ``observed(path)`` in an exercise, which hands every call on to the learner's ``TritonPythonModel``. It
writes the step log, so that a judge need not believe what a model says of itself, and it notes every exception. The
requests of a decoupled model are handed on in such orders as Triton is free to choose.
"""

import importlib.util
import json
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import triton_python_backend_utils as pb_utils

from labserve.observe.clock import own_folder
from labserve.observe.watched_log import Watchdog, WatchedLog, loading
from labserve.triton import FINAL, control, instance, parameter, refuse_request, request_names

START = pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START
RESCHEDULE = pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE
LOAD_S = 30.0  # a model whose import or `initialize` takes longer is named
MOST = 100_000  # things in a model's containers that are counted
FINISHED = "a request that has its last answer was given back to Triton (RESCHEDULE), which no longer knows it"
DROPPED = "a request was neither answered to its end nor given back to Triton (RESCHEDULE)"


class _ObservedRequest:
    """One request, as the learner's model gets it. Counts its answers, and keeps how it is to be released."""

    def __init__(self, request: Any) -> None:
        self.request = request
        self.sent = 0
        self.final = False
        self.release = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.request, name)

    def get_response_sender(self) -> Any:
        return _Sender(self, self.request.get_response_sender())

    def set_release_flags(self, flags: int) -> None:
        self.release = flags


class _Sender:
    def __init__(self, request: _ObservedRequest, sender: Any) -> None:
        self._request, self._sender = request, sender

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sender, name)

    def send(self, *response: Any, **more: Any) -> None:
        self._sender.send(*response, **more)
        flags = more.get("flags", response[1] if len(response) > 1 else 0)
        self._request.sent += bool(response[:1] or more.get("response"))
        self._request.final = self._request.final or bool(flags & FINAL)


class Observer:
    """Stands between Triton and the learner's model."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def initialize(self, args: dict[str, str]) -> None:
        run_dir, model = parameter(args, "run_dir"), args["model_name"]
        folder = Path(own_folder(run_dir))
        self.faults = folder / f"faults-{model}-{instance(args)}.jsonl"
        note = folder / f"stuck-{model}-{instance(args)}.json"
        watchdog = Watchdog(note, model, LOAD_S, find=lambda frame: loading(frame, str(self.path)), what="loading")
        try:
            module = _module(self.path)
            self.model = module.TritonPythonModel()
            if hasattr(self.model, "initialize"):
                self.model.initialize(_without_log(args))
        finally:
            watchdog.close()
            note.unlink(missing_ok=True)
        policy = json.loads(args["model_config"]).get("model_transaction_policy", {})
        self.decoupled = policy.get("decoupled", False)
        self.held = Held(self.model, module)
        self.held.watch_passes()
        self.log = WatchedLog(run_dir, model, instance(args))
        self.line: list[Any] = []  # ids of requests without an answer yet, in the order in which they were handed over
        self.running: set[Any] = set()  # ids of requests that have an answer, but not their last one
        self.kept_back: set[Any] = set()  # ids in `line` that had to wait for a turn
        self.turns = 0

    def execute(self, requests: Sequence[Any]) -> Any:
        return self._stream(requests) if self.decoupled else self._answer(requests)

    def finalize(self) -> None:
        if hasattr(self.model, "finalize"):
            self.model.finalize()
        self.log.close()

    # -- one response for each request ------------------------------------------------------------------------------

    def _answer(self, requests: Sequence[Any]) -> Any:
        began = time.monotonic()
        real = [request for request in requests if control(request, "READY", 1)]
        try:
            return self.model.execute(requests)
        except Exception as error:
            self._note(error)
            raise
        finally:
            names = request_names(real)
            ids = [control(request, "CORR_ID", name) for request, name in zip(real, names, strict=True)]
            empty = len(requests) - len(real)
            self.log.write(began, ids, empty=empty, widest=self.held.widest(), kept=self.held.grown())

    # -- decoupled ----------------------------------------------------------------------------------------------------

    def _stream(self, requests: Sequence[Any]) -> None:
        began = time.monotonic()
        handed_on = self._handed_on(requests)
        passes, prompts = self._computed()
        error: Exception | None = None
        try:
            if handed_on:
                self.model.execute(list(handed_on))
        except Exception as raised:
            error = raised
            self._note(error)
        passes_now, prompts_now = self._computed()
        self._record(began, handed_on, passes_now - passes, prompts_now - prompts)
        for request in handed_on:
            self._release(request, error)
        self.turns += 1

    def _handed_on(self, requests: Sequence[Any]) -> list[_ObservedRequest]:
        """The requests of this turn, as Triton might hand them over.

        Triton promises no order in which requests that were given back come again, and not that they come together.
        So every other turn their order is the reverse, and the first that still waits is late once.
        """
        new = [request for request in requests if request.flags() & START]
        self.line += [request.correlation_id() for request in new]
        again = [request for request in requests if not request.flags() & START]
        first = self.line[0] if self.line else None
        for request in list(again):
            id = request.correlation_id()
            if id == first and id not in self.kept_back:
                self.kept_back.add(id)
                again.remove(request)
                request.set_release_flags(RESCHEDULE)
        if self.turns % 2:
            again.reverse()
        return [_ObservedRequest(request) for request in (*again, *new)]

    def _computed(self) -> tuple[int, int]:
        """Forward passes and prompts of the model's decoder since it was loaded."""
        return getattr(self.held.cache, "passes", 0), getattr(self.held.cache, "prompts", 0)

    def _record(self, began: float, handed_on: Sequence[_ObservedRequest], passes: int, prompts: int) -> None:
        """The turn's line in the step log.

        `passes`: forward passes of the decoder; `prompts`: prompts that it computed; `left_out`: requests between their
        first and last answer that were handed over and got no answer; `overtaken`: requests that wait while a later
        one has its first answer; `held_up`: 1 if the first request that waits was handed over and got no answer.
        """
        answered = [request for request in handed_on if request.sent]
        ids = [request.correlation_id() for request in answered]
        first = [id for id in ids if id not in self.running]
        left_out = sum(not request.sent for request in handed_on if request.correlation_id() in self.running)
        held_up = sum(not request.sent for request in handed_on if request.correlation_id() in self.line[:1])
        waiting = [id for id in self.line if id not in first]
        last = max((self.line.index(id) for id in first if id in self.line), default=-1)
        overtaken = sum(self.line.index(id) < last for id in waiting)
        self.line = waiting
        self.running |= set(ids)
        for request in handed_on:
            if request.final or not request.release & RESCHEDULE:
                self.running.discard(request.correlation_id())
                self.kept_back.discard(request.correlation_id())
        if ids or left_out or passes:
            self.log.write(
                began,
                ids,
                made=[request.sent for request in answered],
                prefill=len(first),
                left_out=left_out,
                overtaken=overtaken,
                held_up=held_up,
                passes=passes,
                prompts=prompts,
                kept=self.held.grown(),
                slots_used=getattr(self.held.cache, "used", None),
            )

    def _release(self, observed: _ObservedRequest, error: Exception | None) -> None:
        """Give a request back, or end it. What Triton could not go on with is noted, and does not reach it."""
        if observed.final:
            if observed.release & RESCHEDULE and not error:
                self._write(FINISHED)
        elif error:
            refuse_request(observed.request, f"the model raised {type(error).__name__}")
        elif observed.release & RESCHEDULE:
            observed.request.set_release_flags(observed.release)
        else:
            self._write(DROPPED)
            refuse_request(observed.request, DROPPED)

    # -- faults -------------------------------------------------------------------------------------------------------

    def _note(self, error: Exception) -> None:
        pb_utils.Logger.log_error("".join(traceback.format_exception(error)))
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == str(self.path)]
        self._write(f"{type(error).__name__}: {error}", lines[-1] if lines else None, exception=True)

    def _write(self, words: str, line: "int | None" = None, exception: bool = False) -> None:
        """Write a fault. Faults have a file of their own, because a failed step is not in the step log."""
        fault = {"t": time.monotonic(), "words": words[:2000], "line": line, "exception": exception}
        try:
            with self.faults.open("a", encoding="utf-8") as file:
                file.write(f"{json.dumps(fault)}\n")
        except OSError:  # the fault cannot be written, and the model goes on
            pass


class Held:
    """Counts the things in a model's containers (of the object, its class, its module) beyond those it began with."""

    def __init__(self, model: Any, module: ModuleType) -> None:
        self._model, self._module = model, module
        self._widest: int | None = None
        self._before = self._count()

    def grown(self) -> int:
        """How many more things there are than at the beginning."""
        return self._count() - self._before

    @property
    def cache(self) -> Any:
        """The KV cache of the model's decoder (labserve.gpt2.kvcache); None for a model that has none."""
        caches = (getattr(value, "cache", None) for value in vars(self._model).values())
        return next((cache for cache in caches if hasattr(cache, "passes")), None)

    def watch_passes(self) -> None:
        """Note how many rows each forward pass of the model's torch module has: the most are :meth:`widest`."""
        for value in vars(self._model).values():
            if hasattr(value, "register_forward_pre_hook"):
                self._widest = 0
                value.register_forward_pre_hook(self._pass, with_kwargs=True)

    def _pass(self, module: Any, args: Any, named: Any) -> None:
        ids = named.get("input_ids", args[0] if args else None)
        if ids is not None:
            self._widest = max(self._widest or 0, len(ids))

    def widest(self) -> int | None:
        """The most rows of one forward pass since the last call; None for a model without a torch module."""
        widest = self._widest
        if widest is not None:
            self._widest = 0
        return widest

    def _count(self) -> int:
        roots = [vars(owner) for owner in (self._model, type(self._model), self._module)]
        todo = [value for root in roots for value in root.values()]
        known: set[int] = set()
        count = 0
        while todo and count < MOST:
            value = todo.pop()
            if id(value) in known:
                continue
            parts = self._parts(value)
            if parts is None:
                continue
            known.add(id(value))
            if _contains(value):
                count += len(parts)
            todo += parts
        return count

    def _parts(self, value: Any) -> list[Any] | None:
        """The content of a container, or of an object of the learner's own class; None for anything else."""
        if isinstance(value, dict):
            return list(value.values())
        if _contains(value):
            return list(value)
        if type(value).__module__ == self._module.__name__ and hasattr(value, "__dict__"):
            return list(vars(value).values())
        return None


def _contains(value: Any) -> bool:
    return isinstance(value, (dict, list, tuple, set, frozenset, deque))


def observed_model(path: Path) -> Callable[[], Observer]:
    """The class that Triton finds in the place of the one in ``path``."""

    class TritonPythonModel(Observer):
        def __init__(self) -> None:
            super().__init__(path)

    return TritonPythonModel


def _module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # dataclasses look there for the module of their class
    spec.loader.exec_module(module)
    return module


def _without_log(args: dict[str, str]) -> dict[str, str]:
    """The arguments for a model that may not write a step log: where it has no folder, it writes none."""
    config = json.loads(args["model_config"])
    config["parameters"]["run_dir"]["string_value"] = ""
    return {**args, "model_config": json.dumps(config)}
