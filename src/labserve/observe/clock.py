"""The scheduler's clock: it can be stopped and moved on a step at a time (`labctl clock`; docs/develop/step-log.md)."""

import fcntl
import json
import math
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

VERSION = 1
CONTROL = "clock.json"  # in the stack's run folder, written by labctl
POLL_S = 0.005  # between two looks of a model that is held
MOST_S = 10.0  # slow motion adds no more to a step: one that the machine held up would else last for minutes


def own_folder(run_dir: str) -> str:
    """This server's part of the stack's run folder; all of it, where the stack has one server.

    Several servers may serve one stack out of one repository: what each writes goes into a folder of its own.
    """
    number = os.environ.get("LABS_REPLICA", "")
    if not run_dir or not number:
        return run_dir
    return f"{run_dir}/replica-{number}"


class StepClock:
    """The clock of one model instance. The model asks it before each step, and reports when the step is done.

    While the clock runs free, asking costs one stat. `now` is the scheduler's time. Time in which the clock stands
    still does not count, so that no time limit of a model runs out while a person looks at a step.
    """

    def __init__(self, run_dir: str, model: str, instance: str) -> None:
        run_dir = own_folder(run_dir)
        self._control = os.path.join(run_dir, CONTROL) if run_dir else ""  # noqa: PTH118  it is looked at every step
        self._model = model
        self._head = {"v": VERSION, "model": model, "instance": instance}
        self._state = Path(run_dir) / f"clock-{model}-{instance}.json"
        self._claims = Path(run_dir) / f"clock-{model}.claims"
        self._stamp: tuple[int, int] | None = None  # of the control file as it was read
        self._mode: dict[str, Any] = {}
        self._held = 0.0  # seconds, in all
        self._held_since: float | None = None
        self._began = self._took = 0.0  # the last step
        self._ended = 0.0
        self._grant, self._steps = "", 0  # the last permission of labctl, and this instance's steps by it
        self._shown: dict[str, Any] = {}  # the state file's content; {}: there is none
        if run_dir:
            with suppress(OSError):
                self._state.unlink(missing_ok=True)  # the state of an earlier clock
                self._claims.touch()  # labctl sees by it that this model has a clock

    def now(self) -> float:
        """Seconds of time.monotonic() without those in which the clock stood still."""
        now = time.monotonic()
        return now - self._held - (now - self._held_since if self._held_since else 0.0)

    @property
    def free(self) -> bool:
        """Whether the clock is neither stopped nor slowed."""
        mode = self._read()
        return not mode or bool(mode.get("until", math.inf) <= time.monotonic())

    @property
    def seen(self) -> bool:
        """Whether labctl has moved the clock on and waits for the report of each step."""
        return bool(self._shown)

    def wait(self, show: Callable[[], dict[str, Any]]) -> None:
        """Return when the next step may be computed. See `ready`."""
        while not self.ready(show):
            pass

    def ready(self, show: Callable[[], dict[str, Any]]) -> bool:
        """Whether the next step may be computed; False after a moment's sleep, for the caller to ask again.

        `show` returns the fields of a step's line for the waiting step. It is called only while a step waits.
        """
        if self.free:
            self._go(free=True)
            return True
        mode = self._mode
        if mode.get("mode") == "slow":
            rest = self._ended + min((mode["factor"] - 1) * self._took, MOST_S) - time.monotonic()
            if rest <= 0:
                self._go(free=True)
                return True
            self._hold()
            time.sleep(min(rest, POLL_S))
            return False
        if self._claim(mode):
            self._steps += self._shown.get("state") == "running"  # it failed, and could not say that it is done
            self._go(free=False)
            self._show("running", self._fields())
            return True
        self._hold()
        self._show("held", show())
        time.sleep(POLL_S)
        return False

    def done(self, left: int = 0) -> None:
        """The step is over; `left` requests need another one."""
        self._ended = time.monotonic()
        self._took = self._ended - self._began
        if self._shown:
            self._steps += self._shown["state"] == "running"
            self._show("idle", {"left": left})

    def idle(self) -> None:
        """There is no step to be computed: what waited has left."""
        if self._held_since is not None:
            self._go(free=False)
        if self._shown:
            self._show("idle", {"left": 0})

    # -- the files --------------------------------------------------------------------------------------------------

    def _read(self) -> dict[str, Any]:
        """The mode that labctl has set for this model; {} if it may run free."""
        try:
            status = os.stat(self._control)  # noqa: PTH116
        except OSError:
            self._stamp, self._mode = None, {}
            return self._mode
        stamp = (status.st_mtime_ns, status.st_ino)
        if stamp != self._stamp:
            self._stamp, self._mode = stamp, {}
            try:
                models = json.loads(Path(self._control).read_bytes())["models"]
                mode = models.get(self._model, models.get("*", {}))
                if mode.get("mode") == "slow":
                    self._mode = {**mode, "factor": float(mode["factor"])}
                elif mode.get("mode") == "pause":
                    self._mode = {**mode, "steps": int(mode.get("steps", 0)), "until": float(mode.get("until", "inf"))}
            except (OSError, ValueError, LookupError, AttributeError, TypeError):
                pass  # not a file of labctl's: the clock runs free
        return self._mode

    def _claim(self, mode: dict[str, Any]) -> bool:
        """Take one of the granted steps, which the model's instances share."""
        if not mode.get("grant"):
            return False
        try:
            with self._claims.open("a+") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                mode = self._read()  # labctl takes a grant back under the same lock
                grant, steps = mode.get("grant"), mode.get("steps", 0)
                file.seek(0)
                name, _, taken = file.read().partition(" ")
                count = int(taken) if name == grant else 0
                if not grant or count >= steps:
                    return False
                file.truncate(0)
                file.write(f"{grant} {count + 1}")
        except (OSError, ValueError):
            return False
        if grant != self._grant:
            self._grant, self._steps = grant, 0
        return True

    def _fields(self) -> dict[str, Any]:
        """The fields that were shown of the step while it waited."""
        return {name: value for name, value in self._shown.items() if name not in _OWN}

    def _show(self, state: str, fields: dict[str, Any]) -> None:
        """Write the state file, where it is not so already."""
        shown = {**self._head, "state": state, "grant": self._grant, "steps": self._steps, **fields}
        if shown.items() <= self._shown.items():
            return
        self._shown = {**shown, "t": round(time.monotonic(), 6)}
        with suppress(OSError):  # the state cannot be shown, and the step goes on
            part = self._state.with_suffix(".part")
            part.write_text(json.dumps(self._shown, separators=(",", ":")))
            part.replace(self._state)

    # -- standing still and going on --------------------------------------------------------------------------------

    def _hold(self) -> None:
        if self._held_since is None:
            self._held_since = time.monotonic()

    def _go(self, free: bool) -> None:
        now = time.monotonic()
        if self._held_since is not None:
            self._held += now - self._held_since
            self._held_since = None
        if free and self._shown:
            self._shown = {}
            with suppress(OSError):
                self._state.unlink(missing_ok=True)
        self._began = now


_OWN = ("v", "model", "instance", "state", "grant", "steps", "left", "t")
