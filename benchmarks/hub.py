"""A room at work: learners who hand in starters, wrong answers and solutions at the same time, over the hub's pages.

Neighbours hand in different answers, each with its learner's mark in it. So a verdict that went to another learner, or
a file that another's overwrote, shows.
"""

from __future__ import annotations

import argparse
import re
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx
import psutil

from labctl.hub import serve
from labctl.hub.app import Hub
from labctl.learn.attempts import Attempt, attempts
from labctl.learn.exercise import Exercise, find_all
from labctl.listener import Silent
from labctl.stack.session import Session
from labkit.errors import LabError
from labkit.waiting import repeated

LEARNERS, EXERCISES = 10, ("01a", "02a", "02b")
ANSWERS = 3  # of each exercise: the starter, a wrong answer, the solution
PATIENCE_S, LOOK_S, SAMPLE_S = 1800.0, 0.5, 2.0
ROOM, CORES, GIB = 30, 16, 64  # what the figures are extrapolated to


@dataclass(frozen=True)
class Handed:
    """One answer that was handed in. ``problem`` is "" where its verdict is the one foreseen."""

    learner: int
    answer: str
    problem: str
    waited_s: float


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Ten learners (``--count``), three exercises each, three answers to each."""
    session = Session.open(Silent())
    folder = serve.folder_of(session.workspace)
    if (folder / "codes.json").exists():
        why = "its learners' files would be mixed with these"
        raise LabError("there is a room here already", why, "labctl hub reset")
    found = find_all(session.workspace, session.catalog)
    exercises = [exercise for exercise in found if exercise.id in EXERCISES]
    learners = options.count or LEARNERS
    settings = serve.Settings(learners, max(1, (psutil.cpu_count() or 2) // 2), 3072, 600.0, apart=True)
    hub, codes = serve.open_hub(session, exercises, settings, exposed=False, secure=False, new_codes=True)
    most = dict.fromkeys(hub.room.seats, 0)

    def sample() -> None:
        for number, seat in hub.room.seats.items():
            most[number] = max(most[number], seat.memory())

    try:
        with serve.listening(hub, 0) as address, repeated(sample, SAMPLE_S, "memory"):
            psutil.cpu_percent()
            began, barrier = time.monotonic(), threading.Barrier(learners)
            with ThreadPoolExecutor(learners) as pool:
                working = [pool.submit(_work, hub, address, codes[n], n, exercises, barrier) for n in most]
                handed = [one for done in working for one in done.result()]
            took, busy = time.monotonic() - began, psutil.cpu_percent()
    finally:
        hub.close()
    mixed = [f"learner {n}: {path.name}" for n in most for path in _foreign(hub, n)]
    problems = [f"learner {one.learner}, {one.answer}: {one.problem}" for one in handed if one.problem] + mixed
    memory, waited = sorted(size / 2**20 for size in most.values()), sorted(one.waited_s for one in handed)
    scale = ROOM / learners * (psutil.cpu_count() or 2) / CORES
    print(*problems, sep="\n")
    print(f"{learners} learners, {len(handed)} checks in {took:.0f} s, {len(problems)} not as foreseen")
    print(f"waited in the queue: median {waited[len(waited) // 2]:.0f} s, longest {waited[-1]:.0f} s")
    print(f"memory of a learner, at most: median {memory[len(memory) // 2]:.0f} MiB, largest {memory[-1]:.0f} MiB")
    print(f"processors busy: {busy:.0f} % of {psutil.cpu_count()}; load {psutil.getloadavg()[0]:.1f}")
    print(f"extrapolated, not measured, to {ROOM} learners on {CORES} processors:")
    print(f"longest wait {scale * waited[-1]:.0f} s, memory {ROOM * memory[-1] / 1024:.0f} of {GIB} GiB")
    return {"learners": learners, "checks": len(handed), "seconds": took, "problems": problems, "cpu": busy} | {
        "waited_s": waited,
        "memory_mib": memory,
    }


def _work(
    hub: Hub, address: str, code: str, learner: int, exercises: Sequence[Exercise], barrier: threading.Barrier
) -> list[Handed]:
    """What one learner does: all answers, in an order that is another one than the neighbour's."""
    origin = address.rstrip("/")
    with httpx.Client(base_url=origin, headers={"origin": origin}, timeout=60.0) as browser:
        browser.post("/enter", data={"code": code})
        barrier.wait()
        return [_hand_in(hub, browser, learner, exercise, attempt) for exercise, attempt in _order(learner, exercises)]


def _order(learner: int, exercises: Sequence[Exercise]) -> Iterator[tuple[Exercise, Attempt]]:
    for turn in range(len(exercises)):
        exercise = exercises[(turn + learner) % len(exercises)]
        starter, *wrong, solution = attempts(exercise)
        answers = (starter, wrong[learner % len(wrong)], solution)
        for at in range(ANSWERS):
            yield exercise, answers[(at + learner // len(exercises)) % ANSWERS]


def _hand_in(hub: Hub, browser: httpx.Client, learner: int, exercise: Exercise, attempt: Attempt) -> Handed:
    mark = f"# learner {learner}\n"
    texts = {name: text + mark for name, text in attempt.files.items()}
    answer = browser.post(f"/task/{exercise.id}/check", data=texts)
    deadline = time.monotonic() + PATIENCE_S
    while hub.room.checks.place(learner) is not None and time.monotonic() < deadline:
        time.sleep(LOOK_S)
    page = browser.get(f"/task/{exercise.id}").text
    verdict = hub.room.desks[learner].verdicts.get(exercise.id)
    name = f"{exercise.id} {attempt.name}"
    if answer.status_code != 303 or verdict is None:
        return Handed(learner, name, f"no verdict ({answer.status_code})", 0.0)
    as_foreseen = verdict.passed if not attempt.says else verdict.sentence == attempt.says
    shown = re.search(r'<p class="yes">' if verdict.passed else r'<p class="no">', page)
    problem = "" if as_foreseen and shown and mark.strip() in page else f"says: {verdict.sentence}"
    return Handed(learner, name, problem, verdict.waited_s)


def _foreign(hub: Hub, learner: int) -> Iterator[Any]:
    """The files in a learner's folder that are marked as another's."""
    for path in (hub.room.seats[learner].folder / "exercises").glob("*/*"):
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        marks = re.findall(r"^# learner (\d+)$", text, re.MULTILINE)
        if any(int(mark) != learner for mark in marks):
            yield path
