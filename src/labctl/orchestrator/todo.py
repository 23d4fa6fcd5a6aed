"""All that a command is going to do: what ``--dry-run`` prints instead of doing it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from labctl.runtimes.actions import Action


@dataclass
class Todo:
    """Actions in order, each once: what one phase has prepared is there for the next."""

    runtime: str
    profile: str
    notices: list[str] = field(default_factory=list)
    actions: list[Action[Any]] = field(default_factory=list)

    def say(self, notices: Iterable[str]) -> None:
        self.notices += [notice for notice in notices if notice not in self.notices]

    def prepare(self, actions: Sequence[Action[Any]]) -> None:
        """Add those that nobody has asked for yet."""
        known = [(action.title, action.commands, action.files) for action in self.actions]
        self.actions += [action for action in actions if (action.title, action.commands, action.files) not in known]
