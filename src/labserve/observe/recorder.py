"""A model's steps as others see them: step log, metrics, and the clock that can hold a step."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tokenizers import Tokenizer

from labsched.account import Account
from labsched.features import Features
from labsched.plan import StepPlan
from labsched.recording import SchedulerSettings
from labsched.request_log import RequestLog
from labsched.step import Step
from labsched.steplog import RequestNames
from labserve.observe.clock import StepClock
from labserve.observe.gauges import Gauges, Value
from labserve.observe.later import Later
from labserve.observe.texts import GrownText, StepTexts
from labserve.observe.watched_log import WatchedLog
from labserve.triton import instance, parameter


class Recorder:
    """Reads plans and steps and changes neither (vLLM: `StatLoggerManager`, vllm/v1/metrics/loggers.py).

    Lines and metrics are made beside the next step, which does not wait for them. But while a clock holds the model,
    they are written before the clock reports that the step is over.

    Args:
        args: those of Triton's `initialize`.
        scheduler: whose steps these are.
        tokenizer: opens the tokenizer for the step log's texts; returns None if there is none.
        gauges: further metrics that this model has, each with its first value.
        features: of an engine with a paged KV cache, and its `settings`, with which the log can be replayed.
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
        self._scheduler = scheduler
        self._account = Account(features) if features else None
        self._names = RequestNames()
        self._ended: dict[str, str] = {}  # requests that ended since the last line, and why
        self.log = WatchedLog(run_dir, model, instance(args))
        self._later = Later("recorder")  # its thread alone uses the texts, the account and the gauges
        self._texts = StepTexts(self.log, tokenizer)
        self._requests = RequestLog(self.log, settings) if settings else None
        self.clock = StepClock(run_dir, model, instance(args))
        first: dict[str, Value] = {"slots": scheduler.max_running, "running": 0, "steps_total": 0, "tokens_total": 0}
        first |= gauges or {}
        self._shown = set(first)
        self._gauges = Gauges(model, **first)

    # -- requests -----------------------------------------------------------------------------------------------------

    def arrived(self, request: Any, put: float) -> None:
        """Name a request that the scheduler has, and that Triton handed over at `put` (monotonic seconds)."""
        if request.id in self._ended:  # the name of another request, whose end the log has first
            self.change()
        request.name = self._names.take(request.id)
        if self._requests:
            self._requests.arrived(request, put)
        origin = self._gauges.origin(request.source)  # read now: a request may be Triton's again later
        self._later.call(self._gauges.arrived, request.name, origin, time.monotonic())

    def ended(self, request: Any) -> None:
        """Note that a request has ended, and why. The next line says so, and then its name is free."""
        self._ended[request.name] = request.why
        if self._requests:
            self._later.call(self._requests.ended(request))

    def forget(self, request: Any) -> None:
        """Keep nothing of a request, in no line either."""
        self._names.free(request.name)
        self._later.call(self._gone, request.name)

    def count(self, **values: Value) -> None:
        """Add to counters of the model's own."""
        self._later.call(self._gauges.update, **values)

    # -- steps --------------------------------------------------------------------------------------------------------

    @property
    def free(self) -> bool:
        """Whether no clock holds the model or moves it on a step at a time."""
        return self.clock.free

    def ready(self, plan: StepPlan) -> bool:
        """Whether the step may be computed now; False while the clock holds it, and shows the plan."""
        if plan.batch or plan.waiting:
            return self.clock.ready(lambda: self._held(plan))
        self.change()  # every request has left, and perhaps not by a step
        if self.clock.seen:
            self.settle()
        self.clock.idle()
        return True

    def wait(self, plan: StepPlan) -> None:
        """Return when the step may be computed."""
        while not self.ready(plan):
            pass

    def record(self, step: Step) -> None:
        """Write the step's line (docs/develop/step-log.md), and its metrics."""
        if not step.batch and not step.waiting:
            return
        if step.batch:
            self._hand_on(step, "step")
        if self._requests:
            self._requests.steps += 1
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
        self._later.settle()

    def close(self) -> None:
        """Write what is left, and no more; the model is being unloaded."""
        self._later.close()
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
        self._later.call(self._tell, step, kind, grown, pieces if grown else None, [*self._scheduler.waiting])
        for name in self._ended:
            self._names.free(name)
        self._ended = {}

    # -- beside the next step -----------------------------------------------------------------------------------------

    def _tell(
        self, step: Step, kind: str, grown: Sequence[GrownText], pieces: Sequence[str] | None, waiting: Sequence[Any]
    ) -> None:
        """Write a line, and the metrics. `pieces` are the texts that a step has made, where the model spells them."""
        running = step.more["slots_used"]
        if step.batch:
            if "kv_blocks" in self._shown:
                step.more["kv_blocks"] = self._scheduler.kv.blocks
            step.more |= self._texts.fields(grown, pieces)
            self._gauges.step(step.ids, step.phase, step.tokens, step.made, step.over)
        if step.batch or step.ended:
            fields = {**step.logged(), **step.more}
            tables = ",".join(table.text for table in fields.pop("block_ids", ()))
            spelled = f'"block_ids":[{tables}]' if tables else ""
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
        account = {**self._account.metrics(step), **self._account.waiting(waiting)} if self._account else {}
        self._gauges.update(**{name: value for name, value in values.items() if name in self._shown}, **account)

    def _gone(self, name: str, why: str = "") -> None:
        """Forget a request that has left."""
        self._texts.forget(name)
        self._gauges.gone(name, why)
