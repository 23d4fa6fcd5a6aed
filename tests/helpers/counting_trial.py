"""What the checks of a batching engine use of a trial, on an engine that counts."""

from __future__ import annotations

import itertools
import json
import random
import runpy
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import recordings

from labctl.learn import promtool as rule_tests
from labctl.learn.exercise import Exercise
from labkit.errors import LabError
from labsched.log.settings import SchedulerSettings
from labsched.own import scheduler_beside
from labsched.replay.player import Replay, scheduler_of
from labsched.replay.recording import Arrival
from labsched.step import Step

BLOCKS = "max_tokens_in_paged_kv_cache"
WORDS = recordings.WORDS | {"max_num_tokens": "256"}

# What lab 07's server shows of a model.
COUNTERS = ("request_success", "count", "exec_count", "queue_duration_us", "pending_request_count")
PAGE = "".join(f'nv_inference_{name}{{model="waits",version="1"}} 0\n' for name in COUNTERS) + "".join(
    f'nv_inference_request_failure{{model="waits",reason="{reason}",version="1"}} 0\n'
    for reason in ("BACKEND", "CANCELED", "OTHER", "REJECTED")
)


def arrival(number: int, after: int, prompt: int, made: int, tenant: str | None = None) -> Arrival:
    return Arrival(str(number), 0.0, after, prompt, made, made, "length", tenant=tenant)


class VllmSteps:
    """What vLLM computes of requests, each with the tokens of its prompt and answer."""

    def __init__(self, settings: Mapping[str, Any], lengths: Mapping[str, tuple[int, int]]) -> None:
        self.budget, self.places = settings["max_num_tokens"], settings["max_num_sequences"]
        self.free = self._blocks(settings[BLOCKS])
        self.tokens = {id: prompt for id, (prompt, _) in lengths.items()}
        self.whole = {id: sum(pair) for id, pair in lengths.items()}
        self.waiting, self.running, self.computed = [*lengths], list[str](), dict.fromkeys(lengths, 0)
        self.steps: list[Step] = []

    @staticmethod
    def _blocks(tokens: int) -> int:
        return -(-tokens // 32)

    def step(self, count: int = 1) -> list[Step]:
        """All steps so far, with so many more."""
        for _ in range(count):
            self._step()
        return self.steps

    def _step(self) -> None:
        budget, batch, evicted = self.budget, dict[str, int](), list[str]()

        def fits(id: str, blocks: int) -> bool:
            nonlocal budget
            if blocks <= self.free:
                batch[id] = min(budget, self.tokens[id] - self.computed[id])
                held, self.computed[id] = self._blocks(self.computed[id]), self.computed[id] + batch[id]
                self.free, budget = self.free + held - self._blocks(self.computed[id]), budget - batch[id]
            return blocks <= self.free or id in batch

        while budget and (left := self.running[len(batch) :]):
            done = self.computed[left[0]]
            after = done + min(budget, self.tokens[left[0]] - done)
            if not fits(left[0], self._blocks(after) - self._blocks(done)):
                evicted.append(self.running.pop())
                self.free += self._blocks(self.computed[evicted[-1]])
                self.computed[evicted[-1]] = 0
                self.waiting.insert(0, evicted[-1])
        while self.waiting and budget and not evicted and len(self.running) < self.places:
            if not fits(self.waiting[0], self._blocks(self.tokens[self.waiting[0]])):
                break
            self.running.append(self.waiting.pop(0))
        made = [int(self.computed[id] == self.tokens[id]) for id in batch]
        for id, new in zip(batch, made, strict=True):
            self.tokens[id] += new
        ended = {id: "length" for id in batch if self.tokens[id] == self.whole[id]}
        for id in ended:
            self.running.remove(id)
            self.free += self._blocks(self.computed[id])
        step = Step([*batch], tokens=[*batch.values()], made=made, evicted=evicted, waiting=[*self.waiting])
        step.ended = ended
        self.steps.append(step)


class CountingTrial:
    """Its requests are answered by a replay, and what a prefix cache finds of them is counted."""

    Error = LabError

    def __init__(self, exercise: Exercise, folder: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self.checks: list[tuple[bool, str]] = []
        self.folder, self._set = folder, WORDS | {key: str(word) for key, word in exercise.manifest.settings.items()}
        self._set["engine"] = WORDS["engine"]  # in vLLM's place too
        self.settings = exercise.manifest.settings
        self._count = itertools.count()
        self._load()

    def _load(self) -> None:
        blocks, step_tokens = int(self._set[BLOCKS] or 1024) // 32, int(self._set["max_num_tokens"])
        settings = SchedulerSettings(self._set, blocks, 32, step_tokens, 2048, 2000)
        self._scheduler = scheduler_of(settings, scheduler_beside(self.folder))

    def send_queued(
        self, requests: Sequence[Any], later: Sequence[tuple[int, Any]] = ()
    ) -> tuple[list[SimpleNamespace], list[Step]]:
        """Answers with their tokens, and steps as the step log has them."""
        arrivals = [
            arrival(next(self._count), after, len(prompt), limit, **more)
            for after, (prompt, limit, *rest) in [*((0, request) for request in requests), *later]
            for more in [rest[0] if rest else {}]
        ]
        made: Counter[str] = Counter()
        steps = Replay(self._scheduler, arrivals).run()
        for step in steps:
            made.update(dict(zip(step.ids, step.made, strict=True)))
        return [SimpleNamespace(id=one.name, tokens=made[one.name], text="") for one in arrivals], steps

    @contextmanager
    def stepping(self, requests: Sequence[Any]) -> Iterator[SimpleNamespace]:
        """vLLM's steps, by the rules of 08b's task."""
        engine = VllmSteps(self.settings, {str(n): (len(prompt), made) for n, (prompt, made) in enumerate(requests)})
        yield SimpleNamespace(records=[SimpleNamespace(id=id) for id in engine.waiting], step=engine.step)

    def in_turn(self, requests: Sequence[Any]) -> tuple[list[SimpleNamespace], list[Step]]:
        """Requests that come one after the other: of each, the step that computes what no earlier one has left."""
        known: set[tuple[int, ...]] = set()
        records, steps = [], []
        for number, (prompt, _) in enumerate(requests):
            beginnings = [tuple(prompt[:end]) for end in range(32, len(prompt) + 1, 32)]
            there = sum(1 for _ in itertools.takewhile(known.__contains__, beginnings))
            known.update(beginnings)
            records.append(SimpleNamespace(id=str(number)))
            steps.append(Step([str(number)], phase="p", tokens=[len(prompt) - 32 * there]))
        return records, steps

    def call(self, script: str, function: str, *arguments: Any) -> Any:
        return json.loads(json.dumps(runpy.run_path(str(self.folder / script))[function](*arguments)))

    def parameters(self, model: str) -> dict[str, str]:
        return dict(self._set)

    def load_with(self, model: str, **parameters: str) -> None:
        self._set |= parameters
        self._load()

    def page(self) -> str:
        return PAGE

    def first_firings(self, file: str, *arguments: Any) -> list[float | None]:
        return rule_tests.first_firings(self.folder / file, *arguments)

    def expect(
        self, name: str, expected: str, measured: object, ok: bool, sentence: str, predicted: bool = False
    ) -> bool:
        self.checks.append((ok, sentence))
        return ok
