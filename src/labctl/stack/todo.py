"""All that a command is going to do: what ``--dry-run`` prints instead of doing it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from labctl.listener import Silent
from labctl.runtimes.actions import Action
from labctl.runtimes.base import Runtime

T = TypeVar("T")


@dataclass
class Todo(Silent):
    """Records the actions of a command in their order, and what the command has to say of its choices."""

    runtime: str = ""
    profile: str = ""
    notices: list[str] = field(default_factory=list)
    actions: list[Action[Any]] = field(default_factory=list)

    def note(self, text: str) -> None:
        if text not in self.notices:
            self.notices.append(text)

    def on(self, runtime: Runtime, profile: str) -> Runtime:
        self.runtime, self.profile = runtime.name, profile
        return runtime

    def record(self, action: Action[T]) -> T:
        """What the action gives in a dry run."""
        self.actions.append(action)
        return action.outcome()

    def prepare(self, actions: Sequence[Action[Any]]) -> None:
        """Record those that are not there yet: what one phase has prepared is there for the next."""
        known = [(action.title, action.commands, action.files) for action in self.actions]
        self.actions += [action for action in actions if (action.title, action.commands, action.files) not in known]
