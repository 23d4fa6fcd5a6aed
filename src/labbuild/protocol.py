"""The protocol of an engine: its name, its options, and how it is built in a folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.errors import LabError

Tell = Callable[[str], None]
Options = Mapping[str, Any]
Facts = Mapping[str, Any]  # the record in an artifact's manifest of how it was made


@dataclass(frozen=True)
class GpuInfo:
    """The GPU and the software that an engine is built for, as in its manifest. ``image`` builds it and serves it."""

    gpu_name: str
    compute_capability: str
    driver: str
    image_digest: str | None = None


@dataclass(frozen=True)
class Builder:
    """The serving image, in which an engine's own builder is run. ``run`` raises LabError for a command that fails."""

    gpu: GpuInfo
    run: Callable[[Sequence[str]], object]


@dataclass(frozen=True)
class Option:
    """One build option; its type is that of its default."""

    default: str | int
    choices: tuple[str, ...] = ()
    minimum: int = 1

    def read(self, name: str, value: Any) -> str | int:
        """The value in the option's own type. Raises LabError if it is none of the choices, or no such number."""
        text = str(value).lower() if isinstance(value, bool) else str(value)
        if isinstance(self.default, int):
            if text.isdecimal() and int(text) >= self.minimum:
                return int(text)
            raise LabError(
                f"engine option {name}={text}",
                f"it must be an integer of at least {self.minimum}",
                code="engine-option-invalid",
            )
        if self.choices and text not in self.choices:
            raise LabError(
                f"engine option {name}={text}",
                f"it must be one of: {', '.join(self.choices)}",
                code="engine-option-invalid",
            )
        return text


class EngineCompiler:
    """A way to compile a model.

    Attributes:
        recipe: changes whenever the same inputs would give another engine; part of the cache key.
        essential: glob patterns that each match at least one file of a finished engine.
    """

    name: str
    recipe: str
    options: Mapping[str, Option] = {}
    essential: Sequence[str]

    def make(self, weights: Path, options: Options, target: Path, tell: Tell, builder: Builder | None) -> Facts:
        """Build into the empty folder ``target``; the result goes into the manifest. Raises LabError."""
        raise NotImplementedError
