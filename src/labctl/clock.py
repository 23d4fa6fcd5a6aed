"""The clock of a stack's schedulers: stop it, move it on by steps, slow it down (docs/develop/step-log.md).

labctl writes ``clock.json`` into the stack's run folder, and each model of ours looks at it before a step; how far it
has come it says in files of its own there.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Required, TypedDict, cast

from labctl.contention import Patience
from labkit import disk
from labkit.client import metrics
from labkit.errors import LabError
from labkit.evidence.steplog import run_folders
from labkit.waiting import call_repeatedly
from labsched.log.files import open_to_read
from labsched.log.steplog import WATCHED

CONTROL = "clock.json"
EVERY = "*"  # in the place of a model's name: all models that are not named
MOST_FACTOR = 10_000.0
LOOK_S = 0.01
LOCK_S = 5.0  # for the lock of the run folder, or of a model's steps: it is never held for long
SETTLE_S = 0.15  # without a waiting or a new request: all steps are done
GONE_S = 1.5  # without a request that was to come back: its client has gone
PATIENCE_S = 120.0  # a step that takes longer than this will not end
SHARE = 0.75  # of a limit: a request that has waited must get its turn within the rest
LIMITS = {
    "max_sequence_idle_microseconds": "forgets a sequence that is idle",
    "default_timeout_microseconds": "refuses a request that waits in its queue",
}


class Mode(TypedDict, total=False):
    """How a clock is set; moments are monotonic seconds."""

    mode: Required[Literal["run", "pause", "slow"]]
    since: float  # of a pause
    until: float  # when it ends by itself
    factor: float  # of slow
    grant: str  # under which so many steps may be taken
    steps: int


class ClockState(TypedDict, total=False):
    """The clock file of a model's instance, with what the step that it holds back has in the step log."""

    model: str
    instance: str
    state: Literal["held", "running", "idle"]
    grant: str
    steps: int  # done under the grant
    left: int  # requests that need another step
    ids: list[str]
    waiting: list[str]
    queue: int  # all that wait


@dataclass(frozen=True)
class Clock:
    """The clock of one stack; ``limit`` ends a pause by itself, None if nothing does."""

    run_dir: Path
    models: tuple[str, ...]
    limit: PauseLimit | None = None

    # -- how it is set ----------------------------------------------------------------------------------------------

    def modes(self) -> dict[str, Mode]:
        """The modes that are set, by model or EVERY; {} if all models run free."""
        try:
            models = disk.read_object(self.run_dir / CONTROL)["models"]
            now = time.monotonic()
            modes: dict[str, Mode] = {name: mode for name, mode in models.items() if mode.get("until", now) >= now}
            numbers = [mode.get(name, 0) for mode in modes.values() for name in ("since", "until", "factor")]
            if not all(mode["mode"] for mode in modes.values()):
                return {}
            return modes if all(isinstance(number, int | float) for number in numbers) else {}
        except (OSError, ValueError, LookupError, AttributeError, TypeError):
            return {}

    def mode(self, model: str) -> Mode:
        """The mode that is set for one model."""
        modes = self.modes()
        return modes.get(model) or modes.get(EVERY) or {"mode": "run"}

    @property
    def clocked(self) -> list[str]:
        """The models that have a clock: each makes the file of its claims when it is loaded."""
        return [model for model in self.models if self._claims(model).exists()]

    @property
    def paused(self) -> list[str]:
        """The models that stand still."""
        return [model for model in self.clocked if self.mode(model)["mode"] == "pause"]

    def pause(self, model: str | None = None) -> None:
        """No model, or this one no more, begins a step."""
        self._set(model, lambda: self._pause(model))

    def _pause(self, model: str | None) -> Mode:
        before = self.modes().get(model or EVERY, {"mode": "run"})
        since = before.get("since") or round(time.monotonic(), 3)
        if self.limit is None:
            return {"mode": "pause", "since": since}
        return {"mode": "pause", "since": since, "until": before.get("until") or round(since + self.limit.most_s, 3)}

    @property
    def until(self) -> float | None:
        """When the first pause ends by itself (monotonic seconds); None if none does."""
        return min((mode["until"] for mode in self.modes().values() if mode.get("until")), default=None)

    def slow(self, factor: float, model: str | None = None) -> None:
        """A step and the time to the next one take ``factor`` times as long as the step."""
        if not 1.0 <= factor <= MOST_FACTOR:
            raise LabError(
                f"slow-down factor {factor:g} is out of range",
                f"it must be from 1 to {MOST_FACTOR:,.0f}",
                code="slow-factor-invalid",
            )
        self._set(model, lambda: {"mode": "slow", "factor": factor})

    def run(self, model: str | None = None) -> None:
        """Let all models, or this one, run free. A step under way does not stop them again."""
        if self.run_dir.is_dir():
            self._set(model, lambda: {"mode": "run"})

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        """Lock the run folder while the control file is read and written, so that no change undoes another one."""
        try:
            self.run_dir.mkdir(parents=True, exist_ok=True)
            folder = os.open(self.run_dir, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise LabError(
                f"{self.run_dir} cannot be used", error.strerror or str(error), code="clock-unusable"
            ) from error
        try:
            _lock(folder)
            yield
        except BlockingIOError as error:
            raise LabError(
                f"{self.run_dir} is locked", "a model, or another command, has not let go of it", code="clock-locked"
            ) from error
        finally:
            os.close(folder)

    def _set(self, model: str | None, mode: Callable[[], Mode]) -> None:
        """Set all models, or this one. ``mode`` is called under the lock of the run folder."""
        with self._changing():
            if model and model not in self.models:
                raise LabError(
                    f"the stack has no model '{model}'", f"it has: {', '.join(self.models)}", code="model-unknown"
                )
            self._write({**self.modes(), model: mode()} if model else {EVERY: mode()})

    def _write(self, modes: Mapping[str, Mode]) -> None:
        control = self.run_dir / CONTROL
        try:
            if all(mode["mode"] == "run" for mode in modes.values()):
                control.unlink(missing_ok=True)
            else:
                disk.atomic_write(control, json.dumps({"v": 1, "models": modes}))
        except OSError as error:
            raise LabError(
                f"{control} cannot be written", error.strerror or str(error), code="clock-unwritable"
            ) from error

    def act(
        self, action: str, amount: float = 1, model: str | None = None, endpoint: str | None = None
    ) -> dict[str, int]:
        """Carry out a person's action: pause, run, slow (``amount``: the factor) or step (``amount``: how many).

        Returns the steps that were done, by model. Raises as the method of that name, and LabError where no model, or
        not the one that is named, has a clock.
        """
        wanted = set(self.models if model is None else {model} & {*self.models})
        if action != "run" and wanted and not wanted & {*self.clocked}:
            raise LabError(
                f"{model} has no clock" if model else "no model of the stack has a clock",
                "a model without a step log computes whenever Triton asks it to",
                "docs/develop/writing-a-lab.md (What models import) says what gives it both",
                code="clock-none",
            )
        match action:
            case "pause":
                self.pause(model)
            case "run":
                self.run(model)
            case "slow":
                self.slow(amount, model)
            case "step":
                return self.step(int(amount), model, endpoint)
            case _:
                raise ValueError(action)
        return {}

    # -- by steps ---------------------------------------------------------------------------------------------------

    def states(self, model: str) -> list[ClockState]:
        """The clock files of a model's instances, while the clock does not run free (docs/develop/step-log.md)."""
        states: list[ClockState] = []
        for path in sorted(self.run_dir.glob(f"clock-{model}-*.json")):
            with contextlib.suppress(OSError, ValueError):
                state = cast(ClockState, disk.read_object(path))
                if state.get("model") == model and state.get("state") and _has_form(state):
                    states.append(state)
        return states

    def held_requests(self, model: str) -> int:
        """How many requests the model's scheduler has, by its own account while the clock holds it."""
        states = [state for state in self.states(model) if state.get("state") == "held"]
        return sum(len(state.get("ids", ())) + int(state.get("queue", 0)) for state in states)

    def step(self, count: int = 1, model: str | None = None, endpoint: str | None = None) -> dict[str, int]:
        """Let each model (or this one) that has requests make ``count`` steps, then stop the clock again.

        Returns the steps of each model. They are fewer than ``count`` if no request waits any more (by Triton's queues:
        ``endpoint`` is of its metrics), or if the clock was set otherwise meanwhile; that setting stays.
        Raises LabError: a step did not end.
        """
        grant = secrets.token_hex(4)
        stepped = [model] if model else list(self.models)
        self._set(model, lambda: {**self._pause(model), "grant": grant, "steps": count})
        try:
            self._await(stepped, grant, count, endpoint)
        finally:
            with self._changing():  # stop again, except where the clock was set otherwise since
                modes = self.modes()
                own = {name: self._pause(name) for name, mode in modes.items() if mode.get("grant") == grant}
                if own:
                    self._write({**modes, **own})
            for name in stepped:  # a model that takes a step holds this lock, and reads the grant again
                with contextlib.suppress(OSError), open_to_read(self._claims(name)) as claims:
                    _lock(claims.fileno())
        deadline = time.monotonic() + PATIENCE_S
        while any(self._begun(name, grant) > self._done(name, grant) for name in stepped if name in self.paused):
            _not_for_ever(deadline)  # a step was begun that has not ended
        return {name: begun for name in stepped if (begun := self._begun(name, grant))}

    def _await(self, models: list[str], grant: str, count: int, endpoint: str | None) -> None:
        quiet: Patience | None = None
        before: object = None
        gone, deadline = Patience(GONE_S), time.monotonic()
        while True:
            states = {name: self.states(name) for name in models}
            if states != before:
                before, gone, deadline = states, Patience(GONE_S), time.monotonic() + PATIENCE_S
            granted = [name for name in models if self.mode(name).get("grant") == grant]
            unfinished = [name for name in granted if self._done(name, grant) < count]
            if not unfinished:
                return
            looked_at = [state for name in unfinished for state in states[name]]
            busy = any(state["state"] in ("held", "running") for state in looked_at)
            coming = any(state.get("left") for state in looked_at) or _pending(endpoint, unfinished)
            if busy or (coming and gone.left()):
                quiet = None
            elif quiet is None:
                quiet = Patience(SETTLE_S)
            elif not quiet.left():
                return
            _not_for_ever(deadline)

    def _done(self, model: str, grant: str) -> int:
        return sum(state.get("steps", 0) for state in self.states(model) if state.get("grant") == grant)

    def _begun(self, model: str, grant: str) -> int:
        """How many of the granted steps a model has taken."""
        try:
            name, _, begun = disk.read_text(self._claims(model)).partition(" ")
            return int(begun or 0) if name == grant else 0
        except (OSError, ValueError):
            return 0

    def _claims(self, model: str) -> Path:
        return self.run_dir / f"clock-{model}.claims"


def _lock(handle: int) -> None:
    """Lock an opened file or folder, for which a step may be waited. Raises BlockingIOError after some seconds."""
    deadline = time.monotonic() + LOCK_S
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return


def _not_for_ever(deadline: float) -> None:
    if time.monotonic() > deadline:
        raise LabError(
            f"a step has not ended within {PATIENCE_S:g} s", "", "labctl status; labctl logs STACK", code="step-unended"
        )
    time.sleep(LOOK_S)


def _pending(endpoint: str | None, models: list[str]) -> bool:
    """Whether Triton has requests for one of them that it has not handed over."""
    with contextlib.suppress(LabError):
        counted = metrics.scrape(endpoint).models if endpoint else {}
        return any(counted[model].pending > 0 for model in models if model in counted)
    return False


@dataclass(frozen=True)
class PauseLimit:
    """The first of Triton's limits to strike. ``why`` is a sentence."""

    limit_s: float
    strikes: str

    @property
    def most_s(self) -> float:
        """Seconds after which a pause ends by itself."""
        return SHARE * self.limit_s

    @property
    def why(self) -> str:
        return f"Triton {self.strikes} for {self.limit_s:,.0f} s"


def pause_limit(repository: Path) -> PauseLimit | None:
    """The limit of a stack, by its models' configurations; None if there is none."""
    limits = []
    for path in repository.glob("*/config.pbtxt"):
        text = re.sub(r"#.*", "", path.read_text(encoding="utf-8"))
        for setting, strikes in LIMITS.items():
            found = map(int, re.findall(rf"\b{setting}:\s*(\d+)", text))
            limits += [PauseLimit(microseconds / 1e6, strikes) for microseconds in found if microseconds]
    return min(limits, key=lambda limit: limit.limit_s, default=None)


def _has_form(state: ClockState) -> bool:
    """Whether what every reader takes for granted is there: a model may write anything."""
    ids, waiting = state.get("ids", []), state.get("waiting", [])
    lists = isinstance(ids, list) and isinstance(waiting, list)
    return (
        lists
        and all(isinstance(id, str) for id in [*ids, *waiting])
        and isinstance(state.get("instance"), str)
        and isinstance(state.get("steps", 0), int)
    )


RENEW_S = 3.0  # a model writes texts while WATCHED is fresh; it is stale after ten


def ask_for_texts(run_dir: Path) -> None:
    """Ask the models of a stack to write texts for the next seconds; nothing happens if the stack has gone."""
    for folder in run_folders(run_dir):
        with contextlib.suppress(OSError):
            (folder / WATCHED).touch()


@contextlib.contextmanager
def keep_texts(run_dir: Path) -> Iterator[None]:
    """Have texts written for the time of a block."""
    ask_for_texts(run_dir)
    with call_repeatedly(functools.partial(ask_for_texts, run_dir), RENEW_S, "texts"):
        yield
