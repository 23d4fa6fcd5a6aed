"""Executions that do not come back: models report them beside their step logs (labserve.observe.watchdog)."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from labctl.listener import Listener
from labkit import nofollow

FRESH_S = 6.0  # they say it anew every second; a note that is older is of a process that is gone
LOOK_S = 0.5
LOOP = "is there a loop without an end?"

Look = Callable[[], list[str]]


def stuck(run_dir: Path) -> list[str]:
    """One sentence for each model of which an execution takes longer than the labs' models ever do."""
    sentences = []
    for path in sorted(run_dir.glob("stuck-*.json")):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, OverflowError):
            if time.time() - path.lstat().st_mtime < FRESH_S:
                mark = nofollow.read_object(path)
                after = f", after {mark['steps']} steps" if mark["steps"] else ""
                since = time.strftime("%H:%M:%S", time.localtime(mark["since"]))
                sentences.append(
                    f"{mark['model']} has not come back from {mark.get('what', 'one execution')} since {since} "
                    f"({time.time() - mark['since']:.0f} s){after}; "
                    f"it is at {mark['file']}:{mark['line']}: {LOOP}"
                )
    return sentences


def looker(run_dir: Path, model: str = "") -> Look:
    """:func:`stuck` of that folder, of one model or of all."""
    return lambda: [said for said in stuck(run_dir) if not model or said.startswith(f"{model} ")]


@contextlib.contextmanager
def told(look: Look, listener: Listener, remedy: str) -> Iterator[None]:
    """For the time of a block, say once of each such model what :func:`stuck` says, as soon as it is known."""
    end = threading.Event()

    def watch() -> None:
        seen: set[str] = set()
        while not end.wait(LOOK_S):
            for sentence in look():
                model = sentence.partition(" ")[0]
                if model not in seen:
                    seen.add(model)
                    listener.note(f"{sentence} {remedy}")

    thread = threading.Thread(target=watch, name="stuck", daemon=True)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()
