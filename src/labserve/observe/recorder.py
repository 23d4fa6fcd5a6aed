"""A model's steps as others see them: step log, metrics, and the clock that can hold a step."""

import base64
import json
import queue
import secrets
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import triton_python_backend_utils as pb_utils
from tokenizers import Tokenizer

from labsched.features import NONE, Features, InForce
from labsched.log.settings import HASH_BYTES, SchedulerSettings
from labsched.log.steplog import MOST_PROMPT, REQUEST, SCHEDULER, RequestNames
from labsched.plan import StepPlan
from labsched.step import Step
from labserve.observe.clock import StepClock
from labserve.observe.gauges import OTHERS, Gauges, Value
from labserve.observe.watched_log import WatchedLog
from labserve.text.detok import Detokenizer
from labserve.triton import instance, parameter

MOST_BEHIND = 1024  # calls that wait for the writer at most: a further one waits
FLUSH_S = 0.25  # from a change of a metric to its message to the server
END_S = 10.0  # for what is left at the end
MOST_TENANTS = 32  # by name on /metrics: clients choose the names, and each name makes a metric
EFFECTIVE = "effective.json"  # in the stack's run folder


class Recorder:
    """Reads plans and steps and changes neither (vLLM: `StatLoggerManager`, vllm/v1/metrics/loggers.py).

    Lines and metrics are made by a writer beside the next step, which does not wait for them. The writer also sends a
    driver's answers. But while a clock holds the model, all is written and sent before the clock reports that the step
    is over. The texts, the tenants and the gauges belong to the writer's thread, all else to the thread that computes
    steps.

    Args:
        args: those of Triton's `initialize`.
        scheduler: whose steps these are.
        tokenizer: opens the tokenizer for the step log's texts; returns None if there is none.
        gauges: further metrics that this model has, each with its first value.
        features: of an engine with a paged KV cache, and its `settings`, with which the log can be replayed: then it
            has two more kinds of lines, `scheduler` and `request` (docs/develop/step-log.md).
    """

    def __init__(
        self,
        args: dict[str, str],
        scheduler: Any,
        tokenizer: Callable[[], Tokenizer | None] = lambda: None,
        gauges: Mapping[str, Value] | None = None,
        features: Features | None = None,
        settings: SchedulerSettings | None = None,
    ) -> None:
        run_dir, model = parameter(args, "run_dir", ""), args["model_name"]
        self._scheduler, self._features = scheduler, features
        self._names = RequestNames()
        self._ended: dict[str, str] = {}  # requests that ended since the last line, and why
        self._came: dict[Any, dict[str, Any]] = {}  # how the live requests came, where the log can be replayed
        self._steps = 0  # as the clock counts them: a step in which requests only wait counts too
        self._key = secrets.randbits(60)  # so that a text cannot be looked up by the hashes of its tokens
        self.log = WatchedLog(run_dir, model, instance(args))
        self._texts = StepTexts(tokenizer)
        self._tenants: set[str] = set()  # that /metrics has
        self._replayable = settings is not None
        if settings:
            self.log.note(SCHEDULER, first=True, **settings.to_json())
        self.clock = StepClock(run_dir, model, instance(args))
        first: dict[str, Value] = {"slots": scheduler.max_running, "running": 0, "steps_total": 0, "tokens_total": 0}
        first |= gauges or {}
        self._shown = set(first)
        self._gauges = Gauges(model, **first)
        self.writer = Writer(self._gauges.flush)

    # -- requests -----------------------------------------------------------------------------------------------------

    def arrived(self, request: Any, put: float) -> None:
        """Name a request that the scheduler has, and that Triton handed over at `put` (monotonic seconds)."""
        if request.id in self._ended:  # the name of another request, whose end the log has first
            self.change()
        request.name = self._names.take(request.id)
        now = time.monotonic()
        if self._replayable:
            came = {"arrived": round(now, 6), "waited": round(now - put, 6), "after": self._steps}
            self._came[request] = came
        life = self._gauges.life(request.source, now)  # read now: a request may be Triton's again later
        self.writer.call(self._gauges.arrived, request.name, life)

    def ended(self, request: Any) -> None:
        """Note that a request has ended, and why. The next line says so, and then its name is free."""
        self._ended[request.name] = request.why
        if came := self._came.pop(request, None):
            self.writer.call(self._note, request, came, self._steps, time.monotonic())

    def forget(self, request: Any) -> None:
        """Keep nothing of a request, in no line either."""
        self._came.pop(request, None)
        self._names.free(request.name)
        self.writer.call(self._gone, request.name)

    def count(self, **values: Value) -> None:
        """Add to counters of the model's own."""
        self.writer.call(self._gauges.update, **values)

    # -- steps --------------------------------------------------------------------------------------------------------

    def ready(self, plan: StepPlan) -> bool:
        """Whether the step may be computed now; False while the clock holds it, and shows the plan."""
        if plan.batch or plan.waiting:
            return self.clock.ready(lambda: self._held(plan))
        self.change()  # every request has left, and perhaps not by a step
        if self.clock.seen:
            self.settle()
        self.clock.idle()
        return True

    def record(self, step: Step) -> None:
        """Write the step's line (docs/develop/step-log.md), and its metrics."""
        if not step.batch and not step.waiting:
            return
        if step.batch:
            self._hand_on(step, "step")
        self._steps += 1
        if self.clock.seen:
            self.settle()
        self.clock.done(left=len(self._scheduler.running) + len(self._scheduler.waiting))

    @property
    def pending(self) -> bool:
        """Whether requests have ended since the last line."""
        return bool(self._ended)

    def change(self) -> None:
        """Write a line about requests that ended without a step, if there are any, and the metrics."""
        self._hand_on(Step([], time.monotonic()), "change")

    def gave_up(self) -> None:
        """The step has failed, and every request has ended."""
        self.clock.done()

    def settle(self) -> None:
        """Return when the log has all that was recorded."""
        self.writer.settle()

    def close(self) -> None:
        """Write what is left, and no more; the model is being unloaded."""
        self.writer.close()
        self._gauges.close()
        self.log.close()

    def _held(self, plan: StepPlan) -> dict[str, Any]:
        """The fields of a step that waits for the clock."""
        self.settle()
        return {
            "ids": [request.name for request in plan.batch],
            **plan.queue_fields(),
            "seats": self._scheduler.slots.names,
        }

    def _hand_on(self, step: Step, kind: str) -> None:
        """Write what has happened, soon. Only then is the name of an ended request free: a later one may have it."""
        slots = self._scheduler.slots
        step.over, step.ended = time.monotonic(), self._ended
        pieces = step.more.pop("texts", None)
        step.more |= {"slots": len(slots.names), "slots_used": slots.used, "seats": slots.names.copy()}
        grown = []
        if self.log.texts:  # the tokens as they are now: the next step adds to them
            for request, made in zip(step.requests, step.made, strict=True):
                ids = [*request.ids]
                grown.append(GrownText(request.name, ids, len(ids) - len(request.output), made))
        self.writer.call(self._write, step, kind, grown, pieces if grown else None, [*self._scheduler.waiting])
        for name in self._ended:
            self._names.free(name)
        self._ended = {}

    # -- beside the next step -----------------------------------------------------------------------------------------

    def _write(
        self, step: Step, kind: str, grown: Sequence["GrownText"], pieces: Sequence[str] | None, waiting: Sequence[Any]
    ) -> None:
        """Write a line, and the metrics. `pieces` are the texts that a step has made, where the model spells them."""
        running = step.more["slots_used"]
        if step.batch:
            if "kv_blocks" in self._shown:
                step.more["kv_blocks"] = self._scheduler.kv.blocks
            step.more |= self._texts.fields(grown, pieces)
            self._gauges.step(step.ids, step.phase, step.tokens, step.made, step.over)
        if step.batch or step.ended:
            fields, spelled = {**step.logged(), **step.more}, ""
            if tables := fields.pop("block_ids", None):
                spelled = f'"block_ids":[{",".join(table.text for table in tables)}]'
            self.log.write(step.began, fields.pop("ids", []), kind, spelled, step.over, **fields)
        for name, why in step.ended.items():
            self._gone(name, why)
        values: dict[str, Value] = {
            "running": running,
            "waiting": len(waiting),
            "admissions_total": len(step.joined),
            "preemptions_total": len(step.evicted),
        }
        if step.kv_blocks_used is not None or not running:
            values["kv_blocks_used"] = (step.kv_blocks_used or 0) if running else 0
        values = {name: value for name, value in values.items() if name in self._shown}
        if features := self._features:
            if features.kv_cache_reuse:
                values["cached_tokens_total"] = sum(step.cached)
            if features.speculation != NONE:
                accepted = sum(step.accepted)
                values["guessed_tokens_total"] = {"accepted": accepted, "rejected": sum(step.guessed) - accepted}
            counts = dict.fromkeys(self._tenants, 0)  # of requests that wait: 0 for tenants that had some before
            for tenant in filter(None, map(attrgetter("tenant"), waiting)):
                name = tenant if tenant in counts or len(counts) < MOST_TENANTS else OTHERS
                counts[name] = counts.get(name, 0) + 1
            self._tenants.update(counts)
            if counts:
                values["waiting_of"] = counts
        self._gauges.update(**values)

    def _gone(self, name: str, why: str | None = None) -> None:
        """Forget a request that has left."""
        self._texts.forget(name)
        self._gauges.gone(name, why)

    def _note(self, request: Any, came: dict[str, Any], left: int, now: float) -> None:
        """Write an ended request's line: it is made here, because hashing all tokens takes time."""
        if not self.log.open:
            return
        key, hashes = self._key, bytearray()
        for token in request.prompt + request.output:  # a keyed hash of the sequence up to each of its tokens
            key = hash((key, token))
            hashes += (key & 0xFFFFFF).to_bytes(HASH_BYTES, "little")
        self.log.note(
            REQUEST,
            t=round(now, 6),
            name=request.name,
            came=request.came,
            **came,
            prompt=len(request.prompt),
            limit=request.limit,
            made=len(request.output),
            why=request.why,
            left=left,
            word=request.ends_with_stop_word,
            tenant=request.tenant,
            priority=request.priority,
            resumable=request.resumable,
            prefixes=base64.b64encode(hashes).decode(),
        )


class GrownText(NamedTuple):
    """A request after a step: its name, its ids from the prompt's on, and how many are the prompt's and the step's."""

    name: str
    ids: Sequence[int]
    prompt: int
    made: int


class StepTexts:
    """The texts of the step log, and the part of each that is in the log already.

    `tokenizer` is asked for when texts are wanted for the first time; None: they cannot be had.
    """

    def __init__(self, tokenizer: Callable[[], Tokenizer | None]) -> None:
        self._open = tokenizer
        self._tokenizer: Tokenizer | None = None
        self._known: dict[str, Detokenizer] = {}

    def fields(self, batch: Sequence[GrownText], pieces: Sequence[str] | None = None) -> dict[str, Any]:
        """The fields `texts`, `prompts` and `before` of a step's line; {} while the log takes no texts.

        Args:
            batch: the requests in the step; empty while the log takes no texts.
            pieces: the texts, if the model has made them anyway.
        """
        if not batch:
            self._known = {}
            return {}
        self._tokenizer = self._tokenizer or self._open()
        if self._tokenizer is None:
            return {}
        prompts, before = {}, {}
        for name, ids, prompt, made in batch:
            if name not in self._known:
                grown = self._known[name] = Detokenizer(self._tokenizer)
                prompts[name] = self._tokenizer.decode(list(ids[:prompt]), skip_special_tokens=False)[:MOST_PROMPT]
                if earlier := _spell(grown, ids[prompt : len(ids) - made]):
                    before[name] = earlier
        if pieces is None:
            pieces = [_spell(self._known[name], ids[len(ids) - made :]) for name, ids, _, made in batch]
        return {"texts": list(pieces), "prompts": prompts, "before": before}

    def forget(self, name: str) -> None:
        """The request has ended."""
        self._known.pop(name, None)


def _spell(text: Detokenizer, ids: Sequence[int]) -> str:
    return "".join(map(text.add, ids))


class Writer:
    """Makes calls in a thread of its own, in their order. It ends with `close`, or with this object.

    While the engine computes, its thread has given up Python's lock, and this one goes on.

    Args:
        flush: a method that is also called, `FLUSH_S` after the first call since it was called last.
    """

    def __init__(self, flush: Callable[[], None]) -> None:
        self._calls: queue.SimpleQueue[tuple[Callable[..., None], Any, Any] | None] = queue.SimpleQueue()
        arguments = self._calls, weakref.WeakMethod(flush)
        self._thread = threading.Thread(target=_make_calls, args=arguments, name="writer", daemon=True)
        self._thread.start()
        weakref.finalize(self, self._calls.put, None)

    def call(self, function: Callable[..., None], *args: Any, **named: Any) -> None:
        """Call `function(*args, **named)` soon. The server's log has an exception, once for each message."""
        if self._calls.qsize() >= MOST_BEHIND:
            self.settle()
        self._calls.put((function, args, named))

    def settle(self) -> None:
        """Return when all calls are made, or after END_S seconds."""
        settled = threading.Event()
        self._calls.put((settled.set, (), {}))
        settled.wait(END_S)

    def close(self) -> None:
        """Make the calls that are left, and no more."""
        self._calls.put(None)
        self._thread.join(END_S)


def _make_calls(calls: Any, flush: weakref.WeakMethod[Any]) -> None:
    logged: set[str] = set()
    due: float | None = None  # monotonic seconds of the next flush; None: nothing is new
    while True:
        try:
            left = None if due is None else due - time.monotonic()
            if left is not None and left <= 0:
                raise queue.Empty
            call = calls.get(timeout=left)
            due = due or time.monotonic() + FLUSH_S
        except queue.Empty:
            call, due = (flush() or (lambda: None), (), {}), None
        if call is None:
            return
        function, args, named = call
        try:
            function(*args, **named)
        except Exception as error:
            due = due or time.monotonic() + FLUSH_S  # what could not be flushed is tried again
            if str(error) not in logged:
                logged.add(str(error))
                pb_utils.Logger.log_error("".join(traceback.format_exception(error)))
        del call, function, args, named  # they may hold what ends this thread


def note_in_force(run_dir: str, settings: Iterable[InForce]) -> None:
    """Write the settings that a model has in force, and why where one is not what was asked for (`labctl status`).

    Args:
        run_dir: the stack's writable run folder; "" for none.
    """
    if not run_dir:
        return
    by_name = {
        setting.name: {"asked": setting.asked, "effective": setting.effective, "reason": setting.reason}
        for setting in settings
    }
    path = Path(run_dir) / EFFECTIVE
    temporary = path.with_suffix(".part")
    with suppress(OSError):  # a server serves also if it cannot write this file
        temporary.write_text(json.dumps(by_name), encoding="utf-8")
        temporary.replace(path)
