"""The scheduler's step log, its metrics, and the clock that can hold it."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import triton_python_backend_utils as pb_utils

from labsched.account import Account
from labsched.plan import StepPlan
from labsched.recording import SchedulerSettings
from labsched.request import Request
from labsched.request_log import WORDS, RequestLog
from labsched.step import Step
from labsched.steplog import RequestNames
from labserve.inflight.setup import AnySetup
from labserve.observe import effective
from labserve.observe.clock import StepClock
from labserve.observe.gauges import Gauges
from labserve.observe.later import Later
from labserve.observe.texts import GrownText, StepTexts, find_tokenizer
from labserve.observe.watched_log import WatchedLog
from labserve.triton import instance, model_parameters


@dataclass(slots=True)
class After:
    """The state after a step, beside the step's own account."""

    over: float  # monotonic seconds
    running: int
    waiting: list[Request]
    ended: dict[str, str]  # requests that ended since the step before, and why
    slots_used: int
    seats: list[str]
    ids: list[list[int]]  # of each request in the step, from the prompt's on; [] if no texts are wanted


class Recorder:
    """Reads plans and steps and changes neither (vLLM: `StatLoggerManager`, vllm/v1/metrics/loggers.py).

    Lines and metrics are made beside the next step, which does not wait for them. But while a clock holds the model,
    they are written before the clock reports that the step is over.
    """

    def __init__(self, args: dict[str, str], setup: AnySetup) -> None:
        word, model = model_parameters(args), args["model_name"]
        self._scheduler, kv = setup.scheduler, setup.kv
        self._account = Account(setup.features)
        self._names = RequestNames()
        self._ended: dict[str, str] = {}  # requests that ended since the last line, and why
        self._log = WatchedLog(word("run_dir"), model, instance(args))
        self._later = Later("recorder")  # its thread alone uses the texts, the account and the gauges
        self._texts = StepTexts(self._log, lambda: find_tokenizer(word("gpt_model_path")))
        self._requests = RequestLog(
            self._log,
            SchedulerSettings(
                {name: word(name) for name in WORDS},
                kv.blocks,
                kv.block_size,
                setup.features.max_num_tokens,
                setup.shape.context,
                setup.shape.vocabulary,
                setup.own,
            ),
        )
        self._clock = StepClock(word("run_dir"), model, instance(args))
        self._gauges = Gauges(
            model,
            slots=self._scheduler.max_running,
            running=0,
            waiting=0,
            kv_blocks=kv.blocks,
            kv_blocks_used=0,
            steps_total=0,
            tokens_total=0,
            admissions_total=0,
            preemptions_total=0,
        )
        effective.note(word("run_dir"), setup.in_force(word))
        pb_utils.Logger.log_info(setup.describe(word))

    def watch(self, step: Callable[[], None]) -> None:
        """Tell the watchdog which function computes a step in this thread."""
        self._log.watch(step)

    def arrived(self, request: Request) -> None:
        request.name = self._names.take(request.id)
        self._requests.arrived(request)
        self._later.call(self._gauges.arrived, request.name, request.source, time.monotonic())

    def ended(self, request: Request) -> None:
        self._ended[request.name] = request.why
        self._later.call(self._requests.ended(request))

    @property
    def free(self) -> bool:
        """Whether no clock holds the model or moves it on a step at a time."""
        return self._clock.free

    def ready(self, plan: StepPlan) -> bool:
        """Whether the step may be computed now; False while the clock holds it, and shows the plan."""
        if plan.batch or plan.waiting:
            return self._clock.ready(lambda: self._held(plan))
        self._nothing_to_do()
        return True

    def record(self, step: Step) -> None:
        """Write the step's line (docs/develop/step-log.md), and its metrics."""
        if not step.batch and not step.waiting:
            return
        after = self._after([*self._scheduler.waiting])
        if step.batch:
            if self._log.texts:
                after.ids = [request.prompt + request.output for request in step.batch]
            self._hand_on(self._tell, step, after)
        self._requests.steps += 1
        if self._clock.seen:
            self.settle()
        self._clock.done(left=after.running + len(after.waiting))

    def _after(self, waiting: list[Request]) -> After:
        slots, running = self._scheduler.slots, len(self._scheduler.running)
        return After(time.monotonic(), running, waiting, self._ended, slots.used, slots.names.copy(), [])

    def _hand_on(self, write: Callable[..., None], *account: Any) -> None:
        """Write what has happened, soon. Only then is the name of an ended request free: a later one may have it."""
        self._later.call(write, *account)
        for name in self._ended:
            self._names.free(name)
        self._ended = {}

    def gave_up(self) -> None:
        """The step has failed, and every request has ended."""
        self._clock.done()

    def settle(self) -> None:
        """Return when the log has all that was recorded."""
        self._later.settle()

    def close(self) -> None:
        self._later.close()
        self._gauges.close()
        self._log.close()

    def _held(self, plan: StepPlan) -> dict[str, Any]:
        """The fields of a step that waits for the clock."""
        self.settle()
        return {
            "ids": [request.name for request in plan.batch],
            **plan.queue_fields(),
            "seats": self._scheduler.slots.names,
        }

    def _nothing_to_do(self) -> None:
        """Every request has left, and perhaps not by a step."""
        self._hand_on(self._rest, self._after([]))
        if self._clock.seen:
            self.settle()
        self._clock.idle()

    # -- beside the next step -----------------------------------------------------------------------------------------

    def _tell(self, step: Step, after: After) -> None:
        names, fields = step.names, step.fields()
        self._write(step, names, fields, after)
        self._gauges.step(names, step.phase, step.computed, fields["made"], after.over)
        self._forget(after.ended)
        self._gauges.update(
            running=len(step.batch) if after.running else 0,
            waiting=len(after.waiting),
            kv_blocks_used=step.blocks if after.running else 0,
            admissions_total=len(step.admitted),
            preemptions_total=len(step.preempted),
            **self._account.metrics(step),
            **self._account.waiting(after.waiting),
        )

    def _write(self, step: Step, names: list[str], fields: Mapping[str, Any], after: After) -> None:
        grown = [
            GrownText(request.name, ids, len(request.prompt), count)
            for request, ids, count in zip(step.batch, after.ids, fields["made"], strict=False)  # or there are no ids
        ]
        tables = ",".join(table.text for table in step.block_ids)  # of an engine that has them
        some: dict[str, Any] = {}
        if step.ahead_s:
            some["ahead_us"] = round(step.ahead_s * 1e6)
            some["in_vain"] = step.in_vain
        for name, seconds in (("mask_us", step.mask_s), ("paced_us", step.paced_s)):
            if seconds is not None:
                some[name] = round(seconds * 1e6)
        self._log.write(
            step.began,
            names,
            spelled=f'"block_ids":[{tables}]' if step.block_ids else "",
            over=after.over,
            **fields,
            engine_us=round(step.engine_s * 1e6),
            **self._account.line(step),
            **self._texts.fields(grown),
            prefill=step.prefill,
            decode=len(step.batch) - step.prefill,
            **some,
            admitted=len(step.admitted),
            preempted=len(step.preempted),
            ended=after.ended,
            slots=self._scheduler.max_running,
            slots_used=after.slots_used,
            seats=after.seats,
            kv_blocks=self._scheduler.kv.blocks,
        )

    def _rest(self, after: After) -> None:
        """No request is left: write what has ended, and the metrics."""
        self._gauges.update(running=0, waiting=0, kv_blocks_used=0, **self._account.waiting([]))
        if after.ended:
            self._log.write(
                after.over, [], "change", over=after.over, ended=after.ended, slots_used=0, seats=after.seats
            )
        self._forget(after.ended)

    def _forget(self, ended: Mapping[str, str]) -> None:
        for name, why in ended.items():
            self._texts.forget(name)
            self._gauges.gone(name, why)
