"""One model's steps as others see them: the clock lets each begin; log and metrics have what was observed of it."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tokenizers import Tokenizer

from labsched.slots import Slots
from labsched.steplog import RequestNames, queue_fields
from labserve.observe.clock import StepClock
from labserve.observe.gauges import Gauges, Value
from labserve.observe.texts import GrownText, StepTexts
from labserve.observe.watched_log import WatchedLog
from labserve.triton import instance, parameter


@dataclass
class ObservedStep:
    """The observations of a step: its requests after it, their new texts if the model spells them anyway, and counts.

    `more` are other fields of the step's line (docs/develop/step-log.md).
    """

    grown: list[GrownText] = field(default_factory=list)
    pieces: "list[str] | None" = None
    more: dict[str, Any] = field(default_factory=dict)


class Steps:
    """The requests of a model instance from their arrival to their end, and its steps.

    Args:
        args: those of Triton's `initialize`.
        slots: how many requests may run at a time.
        tokenizer: opens the tokenizer for the step log's texts; returns None if there is none.
        gauges: further metrics that this model has, each with its first value.
    """

    def __init__(
        self, args: dict[str, str], slots: int, tokenizer: Callable[[], "Tokenizer | None"], **gauges: Value
    ) -> None:
        run_dir, model = parameter(args, "run_dir", ""), args["model_name"]
        self.log = WatchedLog(run_dir, model, instance(args))
        self.clock = StepClock(run_dir, model, instance(args))
        first: dict[str, Value] = {"slots": slots, "running": 0, "steps_total": 0, "tokens_total": 0, **gauges}
        self.gauges = Gauges(model, **first)
        self.slots = Slots(slots)
        self._texts = StepTexts(self.log, tokenizer)
        self._names = RequestNames()
        # Requests that joined, lost their slot or ended (and why) since the last line.
        self._joined: list[str] = []
        self._evicted: list[str] = []
        self.ended: dict[str, str] = {}

    # -- requests -----------------------------------------------------------------------------------------------------

    def arrive(self, request: Any, name: str = "") -> str:
        """A request has come. Returns its name: a free one that is like `name`, or else like its own id."""
        if name in self.ended:  # of another request, whose end the log has first
            self.write(time.monotonic(), kind="change")
        name = self._names.take(name or request.request_id())
        self.gauges.arrived(name, request)
        return name

    def join(self, name: str) -> None:
        """The request gets a slot."""
        self.slots.take(name)
        self._joined.append(name)

    def evict(self, name: str) -> None:
        """The request loses its slot, and waits again."""
        self.slots.free(name)
        self._evicted.append(name)

    def end(self, name: str, why: str) -> None:
        """The request has ended. The next line says why, and then its name is free."""
        self.slots.free(name)
        self.ended[name] = why

    def forget(self, name: str) -> None:
        """Keep nothing of the request, in no line either."""
        self.slots.free(name)
        if name in self._joined:
            self._joined.remove(name)
        self._free(name)

    def _free(self, name: str, why: str = "") -> None:
        self._names.free(name)
        self._texts.forget(name)
        self.gauges.gone(name, why)

    # -- steps --------------------------------------------------------------------------------------------------------

    @contextmanager
    def step(
        self, names: Sequence[str], phase: str, tokens: Sequence[int], waiting: "Sequence[str] | None" = None
    ) -> Iterator[ObservedStep]:
        """Surround a step: wait for the clock before it, and log and count it afterwards.

        Args:
            names: the requests in the step.
            phase: a letter for each: "p" its prompt is computed, "d" it decodes.
            tokens: how many are computed for each.
            waiting: the requests that wait for a slot; None for a model in which none can wait.

        Yields what is to be filled in. If the step raises, nothing is logged and its requests are forgotten.
        """
        line: dict[str, Any] = {"rows": [self.slots.of(name) for name in names], "phase": phase, "tokens": tokens}
        if waiting is not None:
            line |= queue_fields(waiting, "no slot")
        step = ObservedStep()
        try:
            self.clock.wait(lambda: {"ids": list(names), **line, "seats": self.slots.names})
            started = time.monotonic()
            yield step
        except BaseException:
            for name in names:
                self.forget(name)
            self.gauges.update(running=self.slots.used)
            raise
        made = [grown.made for grown in step.grown]
        texts = self._texts.fields(step.grown, step.pieces)
        self.gauges.step(names, phase, tokens, made)
        prefill = phase.count("p")
        running = sum(name not in self.ended for name in names)
        self.write(started, names, **line, prefill=prefill, made=made, **texts, **step.more)
        self.clock.done(left=running + len(waiting or ()))

    def write(self, started: float, names: Sequence[str] = (), **line: Any) -> None:
        """Write a line, with the requests that joined, lost their slot or ended since the last one."""
        self.log.write(
            started,
            names,
            **line,
            joined=self._joined,
            evicted=self._evicted,
            ended=self.ended,
            slots=len(self.slots.names),
            slots_used=self.slots.used,
            seats=self.slots.names,
        )
        ended, self.ended, self._joined, self._evicted = self.ended, {}, [], []
        for name, why in ended.items():
            self._free(name, why)
        self.gauges.update(running=self.slots.used)

    def close(self) -> None:
        """Write no more; the model is being unloaded."""
        self.gauges.close()
        self.log.close()
