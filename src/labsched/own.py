"""A learner's own scheduler: a ``scheduler.py`` next to ``model.py`` whose ``Scheduler`` overrides its decisions."""

import importlib.util
import traceback
from pathlib import Path
from typing import TypeVar

from labsched.errors import Refusal
from labsched.request import Request
from labsched.scheduler import Scheduler

FILE = "scheduler.py"
Kind = TypeVar("Kind")


def scheduler_beside(folder: Path) -> type[Scheduler]:
    """The class ``Scheduler`` of ``folder/scheduler.py``; else the shipped one. See `class_beside`."""
    kind = class_beside(folder, Scheduler)
    return kind if kind is Scheduler else _with_whole_line(kind)


def class_beside(folder: Path | None, base: type[Kind]) -> type[Kind]:
    """The class ``Scheduler`` of ``folder/scheduler.py``, a subclass of `base`; `base` if there is no such file.

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
    if not (isinstance(own, type) and issubclass(own, base)):
        raise ValueError(f"{FILE}: it needs a class Scheduler({base.__module__}.{base.__name__})")
    return own


def _with_whole_line(kind: type[Scheduler]) -> type[Scheduler]:
    """The class, with a `line` that may name only the next requests: the others follow in order of arrival.

    It is not called while no request waits.
    """

    class Scheduler(kind):  # type: ignore[misc, valid-type]
        def line(self) -> list[Request]:
            if not self.waiting:
                return []
            first = list(super().line())
            named = {id(request) for request in first}
            return [*first, *(request for request in self.waiting if id(request) not in named)]

    return Scheduler


def with_line(error: Exception, folder: Path) -> Exception:
    """An error of ``folder/scheduler.py`` as a refusal that names its line. Without this file, the error itself."""
    if isinstance(error, Refusal) or not (folder / FILE).exists():
        return error
    message = f"{type(error).__name__}: {error}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) == folder / FILE]
    if frames:
        return Refusal(f"{FILE}, line {frames[-1].lineno}: {message}")
    return Refusal(f"{message} (what do places, reserve and victim of {FILE} return?)")
