"""A learner's own scheduler: a ``scheduler.py`` next to ``model.py`` whose ``Scheduler`` overrides its decisions."""

import importlib.util
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar, cast

from labsched import scheduler
from labsched.counting import CountingEngine
from labsched.errors import Refusal
from labsched.request import Request
from labsched.scheduler import Scheduler

FILE = "scheduler.py"
Kind = TypeVar("Kind")


def scheduler_beside(folder: Path) -> type[Scheduler]:
    """The class ``Scheduler`` of ``folder/scheduler.py``; else the shipped one. See `class_beside`."""
    kind = class_beside(folder, Scheduler)
    return kind if kind is Scheduler else _as_it_is_asked(kind)


def class_beside(folder: Path | None, base: type[Kind], *others: type) -> type[Kind]:
    """The class ``Scheduler`` of ``folder/scheduler.py``, a subclass of `base`; `base` if there is no such file.

    It may be a subclass of one of ``others`` too.

    Raises:
        ValueError: the file has no such class.
    """
    if folder is None or not (folder / FILE).exists():
        return base
    spec = importlib.util.spec_from_file_location("own_scheduler", folder / FILE)
    assert spec and spec.loader  # every file that ends with .py has a loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    own = getattr(module, "Scheduler", None)
    if not (isinstance(own, type) and issubclass(own, (base, *others))):
        raise ValueError(f"{FILE}: it needs a class Scheduler({base.__module__}.{base.__name__})")
    return cast("type[Kind]", own)


def names_written(kind: type[Scheduler]) -> set[str]:
    """The names that the file of a class from `scheduler_beside` defines in it."""
    return {name for base in kind.__mro__[1:] if base.__module__ != Scheduler.__module__ for name in vars(base)}


def _as_it_is_asked(kind: type[Scheduler]) -> type[Scheduler]:
    """The class, with what a learner's answers need.

    Its `line` may name only the next requests: the others follow in order of arrival. It is not called while no request
    waits. An engine that computes shares a step's tokens by itself, as the labs' `share` says it: another `share` is
    refused there, and obeyed by an engine that counts.
    """

    class Scheduler(kind):  # type: ignore[misc, valid-type]
        def line(self) -> list[Request]:
            if not self.waiting:
                return []
            first = list(super().line())
            named = {id(request) for request in first}
            return [*first, *(request for request in self.waiting if id(request) not in named)]

        def share(self, budget: int, decoding: int, left: Sequence[int]) -> list[int]:
            parts = list(super().share(budget, decoding, left))
            if not isinstance(self.engine, CountingEngine):
                engines = scheduler.Scheduler.share(self, budget, decoding, left)
                if parts != engines:
                    raise Refusal(f"{FILE}: share returned {parts}, and this engine can only compute {engines}")
            return parts

    return Scheduler


def with_line(error: Exception, folder: Path) -> Exception:
    """An error of ``folder/scheduler.py`` as a refusal that names its line. Without this file, the error itself."""
    if isinstance(error, Refusal) or not (folder / FILE).exists():
        return error
    message = f"{type(error).__name__}: {error}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) == folder / FILE]
    if frames:
        return Refusal(f"{FILE}, line {frames[-1].lineno}: {message}")
    return Refusal(f"{message} (what do places, reserve, victim and share of {FILE} return?)")
