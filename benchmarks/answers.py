"""The choice of exercises that a benchmark judges, and a folder for the answers."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from labctl.learn import growing, server
from labctl.learn.exercise import Exercise, find_exercises
from labctl.listener import Silent
from labctl.stack.session import Session


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", default="", metavar="01,02a", help="checks: those of these labs, and these")


@contextmanager
def desk(only: str) -> Iterator[tuple[Session, list[Exercise]]]:
    """The exercises whose ids begin with one of ``only``'s words; the learner's folders are put aside meanwhile."""
    session = Session.open(Silent())
    words = tuple(word.strip() for word in only.split(","))
    root = session.workspace.root
    folders = {root / name: root / f".{name}-aside" for name in ("exercises", growing.FOLDER)}
    for mine, aside in folders.items():
        if mine.exists() and not aside.exists():  # after a run that was killed, what lies there is an answer
            mine.rename(aside)
    try:
        yield session, [e for e in find_exercises(session.workspace, session.catalog) if e.id.startswith(words)]
    finally:
        server.stop_exercise_server(session)
        for mine, aside in folders.items():
            shutil.rmtree(mine, ignore_errors=True)
            if aside.exists():
                aside.rename(mine)
