"""Exercises of schedulers without a server: a ``check.py`` on the replay's scheduler, over an engine that counts.

:class:`Practice` stands in a check for labctl's ``Trial``. It computes no text and takes no time: what is judged is
what the scheduler decides. ``scripts/site/practice`` runs it in a browser, so it needs nothing but Python.
"""

from __future__ import annotations

import json
import random
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from labkit.errors import LabError
from labsched.lines import MODEL
from labsched.own import FILE, scheduler_beside
from labsched.recording import Arrival, SchedulerSettings, StepRow
from labsched.replay import Replay, scheduler_of
from labsched.step import Step
from labsched.steplog import StepRecord

BLOCK_SIZE, CONTEXT, BUDGET = 32, 1024, 256  # tokens: of a KV block, that the model sees, of a step in pieces
# The words of lab 05's and 06's config.pbtxt where an exercise does not set them.
WORDS = {
    "engine": "openvino",
    "gpt_model_type": "inflight_fused_batching",
    "batch_scheduler_policy": "guaranteed_no_evict",
    "max_num_sequences": "16",
    "max_num_tokens": "",
    "max_tokens_in_paged_kv_cache": "1024",
    "enable_chunked_context": "false",
    "enable_kv_cache_reuse": "false",
    "scheduling": "fcfs",
}
# Token ids of the prompt, tokens to generate; and parameters of the request, where it has any.
Request = tuple[Sequence[int], int] | tuple[Sequence[int], int, Mapping[str, Any]]


@dataclass
class Answered:
    """A request that has ended. ``text`` stands for its tokens, which mean nothing."""

    id: str
    text: str = ""
    tokens: int = 0


@dataclass
class Practice:
    """One run of a check with one seed. ``folder``: the learner's files; ``settings``: the exercise's."""

    seed: int
    folder: Path
    settings: Mapping[str, Any]
    checks: list[dict[str, Any]] = field(default_factory=list)
    Error: ClassVar[type[LabError]] = LabError

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self._words = dict(WORDS)
        self._count = 0
        self.load_with(MODEL, **{name: str(value) for name, value in self.settings.items() if name in WORDS})

    def parameters(self, model: str) -> dict[str, str]:
        """The settings of the scheduler, as the words of its configuration."""
        return dict(self._words)

    def load_with(self, model: str, **parameters: str) -> None:
        """A new scheduler, with other settings than it had. Raises LabError: the learner's file has none."""
        self._words |= {name: value for name, value in parameters.items() if name in WORDS}
        chunked = self._words["enable_chunked_context"].lower() == "true"
        budget = int(self._words["max_num_tokens"] or (BUDGET if chunked else CONTEXT))
        blocks = int(self._words["max_tokens_in_paged_kv_cache"]) // BLOCK_SIZE
        settings = SchedulerSettings(self._words, blocks, BLOCK_SIZE, budget, CONTEXT, CONTEXT)
        self._scheduler = scheduler_of(settings, scheduler_beside(self.folder))

    def send_queued(
        self, requests: Sequence[Request], later: Sequence[tuple[int, Request]] = ()
    ) -> tuple[list[Answered], list[StepRecord]]:
        """Send ``requests`` before the first step and the ``later`` ones after their number of steps.

        Returns: the answers, and the steps.
        """
        arrivals = [self._arrival(0, request) for request in requests]
        arrivals += [self._arrival(after, request) for after, request in later]
        answered = {arrival.name: Answered(arrival.name) for arrival in arrivals}

        def seen(step: Step) -> None:
            for request in step.ended:
                done = answered[request.name]
                done.text, done.tokens = " ".join(map(str, request.output)), len(request.output)

        rows = Replay(self._scheduler, arrivals, seen=seen).run()
        return list(answered.values()), [_logged(row) for row in rows]

    def _arrival(self, after: int, request: Request) -> Arrival:
        ids, limit, *more = request
        self._count += 1
        tenant = str((more[0] if more else {}).get("tenant", ""))
        return Arrival(str(self._count), 0.0, after, len(ids), limit, limit, "length", tenant=tenant)

    def call(self, script: str, function: str, *arguments: Any) -> Any:
        """What the learner's function returns, as JSON. Raises LabError: there is no such function."""
        path = self.folder / script
        names: dict[str, Any] = {"__name__": "exercise", "__file__": str(path)}
        exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), names)
        if not callable(names.get(function)):
            raise LabError(f"{script} has no function {function}", code="function-missing")
        return json.loads(json.dumps(names[function](*json.loads(json.dumps(arguments)))))

    def expect(self, name: str, expected: str, measured: object, ok: bool, sentence: str) -> bool:
        """Note one expectation; ``sentence`` says what it means if it does not hold."""
        row = {"name": name, "expected": expected, "measured": str(measured), "ok": bool(ok)}
        self.checks.append({**row, "sentence": "" if ok else sentence})
        return bool(ok)


def _logged(row: StepRow) -> StepRecord:
    """A step as the step log has it."""
    more = {**row.decides, "preempted": len(row.preempted), "evicted": row.preempted}
    return StepRecord(row.began, row.over, MODEL, "0_0", tuple(row.batch), more)


def check_practice(exercise: Path, folder: Path) -> dict[str, Any]:
    """Judge the learner's files in ``folder`` with two seeds; the exercise has ``check.py`` and ``exercise.json``.

    Returns ``passed``, ``verdict`` and ``checks``.
    """
    manifest = json.loads((exercise / "exercise.json").read_text(encoding="utf-8"))
    judge: dict[str, Any] = {}
    exec(compile((exercise / "check.py").read_text(encoding="utf-8"), "check.py", "exec"), judge)
    seeds = random.SystemRandom().sample(range(1, 100_000), 2)
    checks: list[dict[str, Any]] = []
    for seed in seeds:
        try:
            trial = Practice(seed, folder, manifest["settings"])
            judge["check"](trial)
            checks = trial.checks
        except LabError as error:
            checks = [_failed(f"{error.what}: {error.why}. {manifest['stuck']}" if error.why else error.what)]
        except Exception as error:
            checks = [_failed(_described(error, folder))]
        if failed := next((check for check in checks if not check["ok"]), None):
            return {"passed": False, "verdict": failed["sentence"], "checks": checks}
    held = f"everything holds, with {len(seeds)} seeds, on an engine that counts"
    return {"passed": True, "verdict": f"{manifest['id']}, {manifest['title']}: {held}", "checks": checks}


def _failed(sentence: str) -> dict[str, Any]:
    return {
        "name": "an answer",
        "expected": "without an error",
        "measured": "an error",
        "ok": False,
        "sentence": sentence,
    }


def _described(error: Exception, folder: Path) -> str:
    """An exception, with the line of the learner's file that it came from."""
    if isinstance(error, SyntaxError):
        return f"{Path(error.filename or FILE).name}, line {error.lineno}: {error.msg}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename).parent == folder]
    where = f"{Path(frames[-1].filename).name}, line {frames[-1].lineno}: " if frames else ""
    return f"{where}{type(error).__name__}: {error}"


def arena(source: str) -> dict[str, Any]:
    """A policy on the arena's public traces, and ``fcfs`` beside it: a table's columns and rows, or its foul.

    The policy runs in this process. Its time is not judged: a browser's Python is slower than a server's.
    """
    from types import SimpleNamespace

    from labkit.predict import games, player, referee
    from labkit.predict.policy import Foul, Player

    class Here(Player):
        """A policy without a process of its own."""

        def __init__(self, text: str) -> None:
            self._policy: dict[str, Any] = {"__name__": "policy"}
            exec(compile(text, "policy.py", "exec"), self._policy)
            self.answers = [name for name in player.QUESTIONS if callable(self._policy.get(name))]
            self.seconds = 0.0

        def ask(self, question: str, view: Mapping[str, Any]) -> Any:
            copy = json.loads(json.dumps(view), object_hook=lambda fields: SimpleNamespace(**fields))
            copy.served = vars(copy.served)
            try:
                return self._policy[question](copy)
            except Exception as error:
                frames = traceback.extract_tb(error.__traceback__)
                lines = [frame.lineno for frame in frames if frame.filename == "policy.py"]
                raise Foul("crashed", f"line {lines[-1] if lines else 0}: {error}") from error

    rows = []
    for name, text in (("yours", source), ("fcfs", "")):
        try:
            policy = Here(text)
            played = {trace: referee.play_trace(policy, arrivals) for trace, arrivals in games.public_traces().items()}
        except Foul as foul:
            return {"foul": f"disqualified ({foul.word}): {foul}"}
        except Exception as error:
            return {"foul": _described(error, Path("policy.py").parent)}
        standing = referee.Standing(name, played)
        rows.append([name, *(round(standing.figure(column), 1) for column in referee.COLUMNS)])
    return {"columns": ["policy", *referee.COLUMNS], "rows": rows}
