"""What a command does, as a list: each action says what it will make and knows how it is carried out.

``up``, ``run``, ``bench``, ``render`` and ``engines build`` make such a list and carry it out; ``--dry-run`` prints it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from labctl.listener import Listener

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True)
class Command:
    """A process that is started, with the variables it gets beyond this process's own.

    ``container`` names the container that it makes, if it makes one, and of which image.
    """

    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    container: str = ""
    cwd: Path | None = None


@dataclass(frozen=True)
class Action(Generic[T_co]):
    """One step of a list.

    Attributes:
        do: carries it out; raises LabError, with nothing half made left behind.
        commands: the processes that ``do`` starts, in order.
        given: the line that it gives to a process of an action before it; "" for none.
        minutes: about how long it takes, where that is long.
        expected: what a dry run has in the place of what ``do`` gives.
        files: the paths on this machine that it writes; a folder ends in "/" and stands for all that is in it.
    """

    title: str
    do: Callable[[Listener], T_co]
    commands: Sequence[Command] = ()
    files: Sequence[str] = ()
    minutes: int = 0
    given: str = ""
    expected: Any = None

    def outcome(self) -> T_co:
        """What a dry run has in the place of what ``do`` gives."""
        outcome: T_co = self.expected
        return outcome


def carry_out(actions: Sequence[Action[str]], listener: Listener) -> None:
    """Do each in its turn; what an action returns is told as its outcome."""
    for action in actions:
        listener.step(action.title)
        listener.done(action.do(listener))
