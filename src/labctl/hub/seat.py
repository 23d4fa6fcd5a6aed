"""The learner's side: one call, read from stdin and carried out in the seat, whose answer is the last line of stdout.

All that touches a learner's folder runs here, as the learner's user: the hub itself, which may be root, never opens a
file that a learner's code could have put there. So the hub takes an answer for the word of a stranger.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from typing import Any

from labctl.learn import desk, judge, server
from labctl.learn.exercise import find_all, find_exercise
from labctl.learn.progress import Progress
from labctl.listener import Silent
from labctl.pages.live.lines import clock_of
from labctl.stack.session import Session
from labkit.disk import atomic_write
from labkit.errors import LabError

MODULE = "labctl.hub.seat"
LOOK_S = 5.0


def check(session: Session, call: Mapping[str, Any]) -> Mapping[str, Any]:
    """Put the files in place and judge them."""
    workspace = session.workspace
    exercise = find_exercise(find_all(workspace, session.catalog, lambda problem: None), call["exercise"])
    folder = desk.lay_out(exercise, workspace)
    for name, text in call["files"].items():
        if name not in exercise.manifest.files:
            raise LabError(f"exercise {exercise.id} has no file {name}")
        atomic_write(folder / name, text)
    Progress(workspace).start(exercise.id)
    if there := session.find(server.STACK):
        clock_of(workspace, there[1]).run()  # the learner may have stopped it on the live page
    outcome = judge.check(session, exercise, "local")
    return {"passed": outcome.passed, "sentence": outcome.sentence, "rows": outcome.rows()}


def live(session: Session, call: Mapping[str, Any]) -> Mapping[str, Any]:
    """Serve the live page of the exercise server until that is gone; its address is a line of its own before that."""
    from labctl.pages.live.server import page_of_stack

    there = session.find(server.STACK)
    if there is None:
        raise LabError("your server sleeps", "", "check a file: it comes up then")
    record = there[1].only(there[1].servers[0].number)
    exercises = find_all(session.workspace, session.catalog, lambda problem: None)
    exercise = find_exercise(exercises, Progress(session.workspace).current)
    lab = server.lab_with(exercise, session.workspace)
    with page_of_stack(session.workspace, lab, record, exposed=False).serving(0) as address:
        print(json.dumps({"address": address}), flush=True)
        while session.find(server.STACK):
            time.sleep(LOOK_S)
    return {}


def stop(session: Session, call: Mapping[str, Any]) -> Mapping[str, Any]:
    """Take the exercise server down."""
    return {"stopped": server.stop(session)}


CALLS = {"check": check, "live": live, "stop": stop}


def main() -> None:
    call = json.loads(sys.stdin.readline())
    answer: Mapping[str, Any]
    try:
        answer = CALLS[call["do"]](Session.open(Silent()), call)
    except LabError as error:
        answer = {"error": [error.what, error.why]}
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
