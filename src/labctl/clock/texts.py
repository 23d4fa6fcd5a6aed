"""Texts in the step log: models write them only while a viewer asks for them (docs/develop/step-log.md)."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from pathlib import Path

from labkit.evidence.steplog import run_folders
from labkit.waiting import call_repeatedly

WATCHED = "watched"  # a file in the run folder; a model writes texts while it is fresh
RENEW_S = 3.0  # it is stale after ten


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
