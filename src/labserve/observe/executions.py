"""A model's executions as others see them: for a model whose step is one execution, and not one token."""

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from labsched.log.steplog import RequestNames
from labserve.observe.clock import StepClock
from labserve.observe.watched_log import WatchedLog
from labserve.triton import control, instance, parameter


class Executions:
    """The clock lets each execution of a model instance begin, and the step log says what was in it.

    `args` are those of Triton's `initialize`.
    """

    def __init__(self, args: dict[str, str]) -> None:
        run_dir, model = parameter(args, "run_dir", ""), args["model_name"]
        self.log = WatchedLog(run_dir, model, instance(args))
        self._names = RequestNames()
        self._clock = StepClock(run_dir, model, instance(args))

    @contextmanager
    def execution(self, ids: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Surround an execution of the requests with these names. Yields the other fields of its line, to be filled.

        Set its field `ids` if some of the requests turned out not to be served: the line is about these ids.
        """
        self._clock.wait(lambda: {"ids": ids})
        started = time.monotonic()
        line: dict[str, Any] = {}
        yield line
        if served := line.pop("ids", ids):
            self.log.write(started, served, **line)
        self._clock.done()

    @contextmanager
    def named(self, ids: Sequence[str]) -> Iterator[list[str]]:
        """Names for requests with these ids, as long as they last; no two have the same."""
        names = [self._names.take(id) for id in ids]
        try:
            yield names
        finally:
            for name in names:
                self._names.free(name)

    def close(self) -> None:
        """The model is being unloaded."""
        self.log.close()


class SequenceExecutions(Executions):
    """Executions under Triton's sequence batcher: which sequence is in which row, by the control inputs that it sends.

    That is an independent count, which the slot timeline of lab 01 is held against.
    """

    def __init__(self, args: dict[str, str]) -> None:
        super().__init__(args)
        config = json.loads(args["model_config"])
        batching = config["sequence_batching"]
        self._numbered = any(entry["name"] == "CORR_ID" for entry in batching["control_input"])
        self._direct = "direct" in batching  # a slot is a row; with Oldest the row is another each time
        self._seats = [""] * config["max_batch_size"]  # the sequence in each slot, as far as this model knows

    @contextmanager
    def of(self, requests: Sequence[Any]) -> Iterator[None]:
        """Surround an execution of these requests. Those that fill empty slots (READY is 0) are only counted."""
        rows = [row for row, request in enumerate(requests) if control(request, "READY")]
        ids = [self._id_of(requests[row]) for row in rows]
        starts = [control(requests[row], "START") for row in rows]
        ends = [control(requests[row], "END") for row in rows]
        self._clock.wait(lambda: {"ids": ids})
        started = time.monotonic()
        yield
        if rows:
            self._write(started, len(requests), rows, ids, starts, ends)
        self._clock.done()

    def _id_of(self, request: Any) -> str:
        return str(control(request, "CORR_ID") if self._numbered else request.correlation_id())

    def _write(
        self, started: float, size: int, rows: list[int], ids: list[str], starts: list[int], ends: list[int]
    ) -> None:
        seats = self._seats if self._direct else [""] * len(self._seats)
        for row, id in zip(rows, ids, strict=True):
            seats[row] = id
        ended = {id: "client" for id, end in zip(ids, ends, strict=True) if end}
        self._seats = ["" if id in ended else id for id in seats]
        self.log.write(
            started,
            ids,
            rows=rows,
            start=starts,
            end=ends,
            empty=size - len(rows),
            joined=[id for id, start in zip(ids, starts, strict=True) if start],
            ended=ended,
            slots=len(seats),
            slots_used=sum(map(bool, self._seats)),
            seats=self._seats,
        )
