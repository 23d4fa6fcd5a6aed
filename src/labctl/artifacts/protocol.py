"""What an engine is: a name, its options, and how one is made in a folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from labkit.errors import LabError

Tell = Callable[[str], None]
Options = Mapping[str, Any]


class Builder(Protocol):
    """The serving image, in which an engine's own builder is run; given by whoever may start processes."""

    @property
    def hardware(self) -> Mapping[str, Any]:
        """What the engine will be tied to; kept in its manifest."""

    def run(self, argv: Sequence[str]) -> None:
        """Run one command there; LabError if it fails."""


@dataclass(frozen=True)
class Option:
    """One build option; its type is that of its default."""

    default: str | int
    choices: tuple[str, ...] = ()
    minimum: int = 1

    def read(self, name: str, value: Any) -> str | int:
        """The value in the option's own type.

        Raises:
            LabError: it is none of the choices, or no number of at least ``minimum``.
        """
        text = str(value).lower() if isinstance(value, bool) else str(value)
        if isinstance(self.default, int):
            if text.isdecimal() and int(text) >= self.minimum:
                return int(text)
            raise LabError(f"engine option {name}={text}", f"it must be an integer of at least {self.minimum}")
        if self.choices and text not in self.choices:
            raise LabError(f"engine option {name}={text}", f"it must be one of: {', '.join(self.choices)}")
        return text


class Engine(Protocol):
    """A way to compile a model.

    Attributes:
        recipe: changes whenever the same inputs would give another engine; part of the cache key.
        essential: glob patterns that each match at least one file of a finished engine.
    """

    @property
    def name(self) -> str: ...

    @property
    def recipe(self) -> str: ...

    @property
    def options(self) -> Mapping[str, Option]: ...

    @property
    def essential(self) -> Sequence[str]: ...

    def make(
        self, weights: Path, options: Options, target: Path, tell: Tell, builder: Builder | None
    ) -> Mapping[str, Any]:
        """Build into the empty folder ``target``; what it returns (versions, hardware) goes into the manifest.

        Raises:
            LabError: it cannot be built here.
        """
