"""The clock of a stack's schedulers: stop it, move it on by steps, slow it down (docs/step-log.md).

labctl writes ``clock.json`` into the stack's run folder, and each model of ours looks at it before a step; how far it
has come it says in files of its own there.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labctl.errors import LabError
from labctl.measure.evidence import metrics
from labctl.orchestrator.pause import PauseLimit
from labctl.workspace import atomic_write

CONTROL = "clock.json"
EVERY = "*"  # in the place of a model's name: all that are not named
MOST_FACTOR = 10_000.0
LOOK_S = 0.01
SETTLE_S = 0.15  # nothing waits, and nothing has come for so long
GONE_S = 1.5  # a request that was to come back has not come for so long: its client has gone
PATIENCE_S = 120.0  # a step that takes longer than this will not end


@dataclass(frozen=True)
class Clock:
    """The clock of one stack.

    Args:
        run_dir: the stack's run folder, on this machine.
        models: the stack's models.
        limit: what ends a pause by itself; None: nothing does.
    """

    run_dir: Path
    models: tuple[str, ...]
    limit: PauseLimit | None = None

    # -- how it is set ----------------------------------------------------------------------------------------------

    def modes(self) -> dict[str, dict[str, Any]]:
        """What is set, by model or EVERY; {} where all run free."""
        try:
            models = json.loads((self.run_dir / CONTROL).read_text(encoding="utf-8"))["models"]
            now = time.monotonic()
            return {str(name): dict(mode) for name, mode in models.items() if mode.get("until", now) >= now}
        except (OSError, ValueError, LookupError, AttributeError, TypeError):
            return {}

    def mode(self, model: str) -> dict[str, Any]:
        """What is set for one model: its ``mode`` is run, pause or slow (then with a ``factor``)."""
        modes = self.modes()
        return modes.get(model) or modes.get(EVERY) or {"mode": "run"}

    @property
    def paused(self) -> list[str]:
        """The models that stand still."""
        return [model for model in self.models if self.mode(model)["mode"] == "pause"]

    def pause(self, model: str = "") -> None:
        """No model, or this one no more, begins a step."""
        self._set(model, self._pause(model))

    def _pause(self, model: str) -> dict[str, Any]:
        """The mode of a clock that stands still: since when, and until when at most (monotonic seconds)."""
        before = self.modes().get(model or EVERY, {})
        since = before.get("since") or round(time.monotonic(), 3)
        until = {"until": before.get("until") or round(since + self.limit.most_s, 3)} if self.limit else {}
        return {"mode": "pause", "since": since, **until}

    @property
    def until(self) -> float | None:
        """When the first pause ends by itself (monotonic seconds); None where none does."""
        return min((mode["until"] for mode in self.modes().values() if mode.get("until")), default=None)

    def slow(self, factor: float, model: str = "") -> None:
        """A step and the time to the next one take ``factor`` times as long as the step."""
        if not 1.0 <= factor <= MOST_FACTOR:
            raise LabError(f"{factor:g} is no factor to slow down by", f"it goes from 1 to {MOST_FACTOR:,.0f}")
        self._set(model, {"mode": "slow", "factor": factor})

    def run(self, model: str = "") -> None:
        """All, or this one, run free."""
        self._set(model, {"mode": "run"})

    def _set(self, model: str, mode: Mapping[str, Any]) -> None:
        if model and model not in self.models:
            raise LabError(f"the stack has no model '{model}'", f"it has: {', '.join(self.models)}")
        modes = {**self.modes(), model: dict(mode)} if model else {EVERY: dict(mode)}
        if all(one["mode"] == "run" for one in modes.values()):
            (self.run_dir / CONTROL).unlink(missing_ok=True)
        else:
            atomic_write(self.run_dir / CONTROL, json.dumps({"v": 1, "models": modes}))

    # -- by steps ---------------------------------------------------------------------------------------------------

    def states(self, model: str) -> list[dict[str, Any]]:
        """What the instances of a model say of themselves while the clock does not run free (docs/step-log.md)."""
        states = []
        for path in sorted(self.run_dir.glob(f"clock-{model}-*.json")):
            with contextlib.suppress(OSError, ValueError):
                state = json.loads(path.read_text(encoding="utf-8"))
                if state.get("model") == model:
                    states.append(state)
        return states

    def step(self, count: int = 1, model: str = "", endpoint: str = "") -> dict[str, int]:
        """``count`` steps of each model (or of this one) that has something to do, and then the clock stands still.

        Returns when they are done, or when nothing waits any more; what was not used is taken back.

        Args:
            endpoint: Triton's metrics endpoint, for what waits in its own queues.

        Returns:
            the steps that each model has done.

        Raises:
            LabError: a step did not end.
        """
        grant = secrets.token_hex(4)
        wanted = [model] if model else list(self.models)
        self._set(model, {**self._pause(model), "grant": grant, "steps": count})
        try:
            self._await(wanted, grant, count, endpoint)
        finally:
            self._set(model, self._pause(model))
            for one in wanted:  # whoever takes a step holds this lock, and looks again at what is granted
                with contextlib.suppress(FileNotFoundError), (self.run_dir / f"clock-{one}.claims").open() as claims:
                    fcntl.flock(claims, fcntl.LOCK_EX)
        deadline = time.monotonic() + PATIENCE_S
        while any(self._computing(one, grant) for one in wanted):
            _not_for_ever(deadline)
        return {one: done for one in wanted if (done := self._done(one, grant))}

    def _await(self, models: list[str], grant: str, count: int, endpoint: str) -> None:
        quiet_since: float | None = None
        before: object = None
        deadline = changed = time.monotonic()
        while True:
            now = time.monotonic()
            states = {one: self.states(one) for one in models}
            if states != before:
                before, changed, deadline = states, now, now + PATIENCE_S
            open_ = [one for one in models if self._done(one, grant) < count or self._computing(one, grant)]
            if not open_:
                return
            busy = any(state["state"] in ("held", "running") for one in open_ for state in states[one])
            coming = any(state.get("left") for one in open_ for state in states[one]) or _pending(endpoint, open_)
            if busy or (coming and now - changed < GONE_S):
                quiet_since = None
            elif quiet_since is None:
                quiet_since = now
            elif now - quiet_since > SETTLE_S:
                return
            _not_for_ever(deadline)

    def _done(self, model: str, grant: str) -> int:
        return sum(state.get("steps", 0) for state in self.states(model) if state.get("grant") == grant)

    def _computing(self, model: str, grant: str) -> bool:
        """Whether steps were begun that have not ended."""
        try:
            name, _, begun = (self.run_dir / f"clock-{model}.claims").read_text(encoding="utf-8").partition(" ")
        except OSError:
            return False
        return name == grant and int(begun or 0) > self._done(model, grant)


def _not_for_ever(deadline: float) -> None:
    if time.monotonic() > deadline:
        raise LabError(f"a step has not ended within {PATIENCE_S:g} s", "", "labctl status; labctl logs STACK")
    time.sleep(LOOK_S)


def _pending(endpoint: str, models: list[str]) -> bool:
    """Whether Triton has requests for one of them that it has not handed over."""
    if not endpoint:
        return False
    try:
        counted = metrics.scrape(endpoint).models
    except LabError:
        return False
    return any(counted[model].pending > 0 for model in models if model in counted)
