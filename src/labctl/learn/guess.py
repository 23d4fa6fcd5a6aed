"""*Guess* for a class: a load that is drawn anew, its schedule up to one step, and which requests learners see in it.

The schedule is that of the shipped scheduler (labsched), in counted steps and without a model.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from labkit.evidence.steplog import refusal_reason
from labkit.names import letter
from labkit.predict.field import PlayingField
from labsched.recording import Arrival
from labsched.replay import Replay, line_of, scheduler_of
from labsched.step import Step

POLICIES = {
    "guaranteed_no_evict": "a request joins when the blocks for its whole prompt and answer are promised to no other",
    "max_utilization": "a request joins when its blocks fit and one for each running request stays free; "
    "the last to join is preempted when memory runs out",
}
LEAST_STEPS = 3  # before the step that is asked about
WAITS, PREEMPTED = "waits", "preempted"


@dataclass(frozen=True)
class Cell:
    """What a step did with a request: the tokens that it computed, and whether they were of the prompt; or a word."""

    text: str = ""
    prefill: bool = False


@dataclass(frozen=True)
class Question:
    """A server's settings, the requests in order of arrival, and the lines of its step log.

    The last line is the step that is asked about; the others were before it.
    """

    field: PlayingField
    policy: str
    requests: Sequence[Arrival]
    lines: Sequence[Mapping[str, Any]]

    @property
    def answer(self) -> frozenset[str]:
        return frozenset(self.lines[-1]["ids"])

    @property
    def reason(self) -> str:
        """Why the first request that waits is not in the step; "" if none waits."""
        line = self.lines[-1]
        return f"{line['waiting'][0]}: {refusal_reason(line)}" if line["waiting"] else ""

    def cell(self, name: str, step: int) -> Cell:
        """What the step with this place in ``lines`` did with a request."""
        line = self.lines[step]
        if name in line["evicted"]:
            return Cell(PREEMPTED)
        if name in line["waiting"]:
            return Cell(WAITS)
        if name not in line["ids"]:
            return Cell()
        place = line["ids"].index(name)
        return Cell(str(line["tokens"][place]), line["phase"][place] == "p")

    def made(self, name: str) -> int:
        """How many tokens of its answer a request has before the step that is asked about."""
        return sum(line["made"][line["ids"].index(name)] for line in self.lines[:-1] if name in line["ids"])

    def blocks(self, name: str) -> int:
        """How many KV blocks it holds, or are promised to it, in the step before."""
        before = self.lines[-2]
        return int(before["blocks"][before["ids"].index(name)]) if name in before["ids"] else 0

    def over(self, name: str) -> bool:
        """Whether it ended before the step that is asked about."""
        return any(name in line["ended"] for line in self.lines[:-1])


def draw_question(rng: random.Random) -> Question:
    """A load, and a step of it in which the scheduler has a choice: whom to admit, whom to preempt, or nobody."""
    while True:
        slots, blocks, budget = rng.choice((3, 4, 5)), rng.randint(9, 14), rng.choice((32, 48, 64))
        field, policy, after = PlayingField(slots, blocks, 16, budget), rng.choice([*POLICIES]), 0
        requests = []
        for number in range(rng.randint(7, 9)):
            answer = rng.randint(5, 30)
            requests.append(Arrival(letter(number), 0.0, after, rng.randint(8, 80), answer, answer, "length"))
            after += rng.choice((0, 0, 1, 2, 4))
        lines = _schedule(field, policy, requests)
        steps = dict[str, list[int]]()  # by what happens in them, for a join is much more frequent than a preemption
        for step in range(LEAST_STEPS, len(lines)):
            if kind := _kind(lines[step - 1], lines[step]):
                steps.setdefault(kind, []).append(step)
        if steps:
            step = rng.choice(steps[rng.choice([*steps])])
            come = {name for line in lines[: step + 1] for name in (*line["ids"], *line["waiting"])}
            return Question(field, policy, [one for one in requests if one.name in come], lines[: step + 1])


def _schedule(field: PlayingField, policy: str, requests: Sequence[Arrival]) -> list[dict[str, Any]]:
    """The step log of these requests, to their end."""
    usual = field.settings(requests)
    scheduler = scheduler_of(replace(usual, words={**usual.words, "batch_scheduler_policy": policy}))
    lines = list[dict[str, Any]]()

    def note(step: Step) -> None:
        ended = {request.name: "length" for request in step.ended}
        lines.append({**line_of(step, scheduler), "ended": ended})

    Replay(scheduler, requests, seen=note).run()
    return lines


def _kind(before: Mapping[str, Any], line: Mapping[str, Any]) -> str:
    """What a step decides: it preempts, admits some, or none although a request ended; "": there is no choice."""
    if not line["waiting"]:
        return ""
    if line["evicted"]:
        return "preempts"
    if line["joined"]:
        return "admits"
    return "refuses" if before["ended"] else ""


@dataclass
class Guessing:
    """The class's present question, and who guessed what. It lives as long as the service that shows it."""

    question: Question | None = None
    guesses: dict[str, frozenset[str]] = field(default_factory=dict)
    shown: bool = False  # whether the answer is

    @property
    def open(self) -> bool:
        """Whether a question takes guesses."""
        return bool(self.question) and not self.shown

    def begin(self, question: Question) -> None:
        self.question, self.guesses, self.shown = question, {}, False

    def take(self, learner: str, names: Collection[str]) -> None:
        """A learner's guess; the first one counts, and none after the answer. Names of no request are left out."""
        if self.question and self.open:
            known = {one.name for one in self.question.requests}
            self.guesses.setdefault(learner, frozenset(names) & known)

    def right(self) -> list[str]:
        """The learners who saw exactly the batch."""
        return [name for name, guess in self.guesses.items() if self.question and guess == self.question.answer]

    def commonest_mistake(self) -> tuple[frozenset[str], int] | None:
        """The wrong guess that most made, and how many; None if nobody was wrong."""
        wrong = Counter(guess for guess in self.guesses.values() if self.question and guess != self.question.answer)
        return wrong.most_common(1)[0] if wrong else None
