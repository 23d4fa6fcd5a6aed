"""What the scheduler does with one small load, step by step, as a person has read it: tests/golden/scheduling.txt.

After a change that is meant, ``LABS_WRITE_GOLDEN=1`` writes the file anew; then read its diff.
"""

from __future__ import annotations

import os

from checkout import ROOT

from labsched.counting import CountingEngine
from labsched.features import Features
from labsched.kv_budget import KVBudget
from labsched.order import order
from labsched.policy import Policy
from labsched.request import Request
from labsched.scheduler import Scheduler

GOLDEN = ROOT / "tests" / "golden" / "scheduling.txt"
# Before which step it comes, prompt, limit, tenant, priority. A block has 4 tokens, a step 8; there are 2 slots.
LOAD = {
    "a": (1, 6, 8, "x", 2),
    "b": (1, 9, 6, "x", 2),
    "c": (2, 3, 8, "x", 3),
    "d": (3, 3, 2, "x", 2),
    "e": (4, 11, 2, "y", 1),
}
CASES = {
    "static batching: the next batch begins when the last of this one has ended": ("fcfs", "static"),
    "in-flight batching, guaranteed_no_evict: the whole answer must fit": ("fcfs",),
    "max_utilization: the prompt must fit, and one is preempted when memory runs out": ("fcfs", "evicts"),
    "without chunks: a prompt waits for a step that has room for all of it": ("fcfs", "whole"),
    "with prefix caching: e begins as b did": ("fcfs", "reuse"),
    "shortest_first": ("shortest_first",),
    "priority: 1 is the most urgent": ("priority",),
    "fair: the tenant that was served least is first": ("fair",),
}


def trace(word: str, *options: str) -> list[str]:
    """A line for each step: who is computed (p prefill, d decode, and the tokens), who waits, and why."""
    engine = CountingEngine(12 if "whole" in options else 8, finishes=True)
    features = Features("whole" not in options, engine.step_tokens, kv_cache_reuse="reuse" in options)
    policy = Policy.MAX_UTILIZATION if "evicts" in options else Policy.GUARANTEED_NO_EVICT
    blocks = KVBudget(6 if "evicts" in options else 9, 4)
    of = engine.scheduler = Scheduler(engine, blocks, policy, 2, "static" in options, features, order(word))
    lines: list[str] = []
    while len(lines) < 60 and (len(lines) < 4 or not of.idle):
        for name, (before, prompt, limit, tenant, priority) in LOAD.items():
            if before == len(lines) + 1:
                of.submit(Request(name, list(range(prompt)), limit, tenant=tenant, priority=priority))
        step = of.step()
        computed = zip(step.ids, step.phase, step.tokens, strict=True)
        batch = " ".join(f"{name}:{letter}{tokens}" for name, letter, tokens in computed)
        out, waiting = "".join(step.evicted), "".join(step.waiting)
        why = " ".join([str(step.why or ""), *(f"{k}={n}" for k, n in (step.because or {}).items())])
        row = f"{len(lines) + 1:3}  {batch:<20}  {step.kv_blocks_used} blocks  waiting {waiting:<4}  {why}"
        lines.append(f"{row}{f'  preempted {out}' if out else ''}".rstrip())
    return lines


def test_one_load_is_scheduled_as_a_person_has_read_it() -> None:
    load = [f"{n}: step {s}, prompt {p}, answer {a}, tenant {t}, priority {i}" for n, (s, p, a, t, i) in LOAD.items()]
    text = "\n".join(["\n".join(load), *("\n".join(["", title, *trace(*case)]) for title, case in CASES.items()), ""])
    if os.environ.get("LABS_WRITE_GOLDEN"):
        GOLDEN.parent.mkdir(exist_ok=True)
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()
