"""The step log of a model in Triton: in its own server's folder, and with a watchdog on the model's executions."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from labsched.steplog import StepLog
from labserve.observe.replica import own_folder
from labserve.observe.watchdog import Watchdog


class WatchedLog(StepLog):
    """A step log in the stack's run folder `run_dir`; where that is "", there is neither a log nor a watchdog."""

    def __init__(self, run_dir: str, model: str, instance: str) -> None:
        folder = own_folder(run_dir)
        super().__init__(folder, model, instance)
        self._watchdog: Watchdog | None = None
        if run_dir:
            self._watchdog = Watchdog(Path(folder) / f"stuck-{model}-{instance}.json", model)

    def write(self, started: float, ids: Sequence[object], *args: Any, **named: Any) -> None:
        super().write(started, ids, *args, **named)
        if self._watchdog is not None:
            self._watchdog.steps = self.count

    def watch(self, function: Callable[..., Any], hung: Callable[[str], None], folder: Path | None = None) -> None:
        """Called in a thread in which a model computes: each call of `function` there is an execution.

        See `Watchdog.watch`.
        """
        if self._watchdog is not None:
            self._watchdog.watch(function, hung, folder)

    def close(self) -> None:
        if self._watchdog is not None:
            self._watchdog.close()
        super().close()
